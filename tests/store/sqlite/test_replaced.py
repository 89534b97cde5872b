"""A file that is taken away, replaced or upgraded under an open store: every verb says so, and
nothing is answered as written that whoever opens the name again would not find."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from flowfabric import App
from flowfabric.core.flow.views import FlowQuery, Sight
from flowfabric.core.model import Feed, Query, Want
from flowfabric.core.transition import Changeset
from flowfabric.errors import FlowFabricError, StoreMismatch
from flowfabric.store.sqlite import SqliteStore
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import execution_id, order, submissions
from flowfabric.testing.conformance.steps import put, take
from flowfabric.testing.flows import FLOW
from tests.app.stage import PATIENCE_SECONDS

Happens = Callable[[Path], None]


def replaced(path: Path) -> None:
    """By a copy of itself: only the file is another."""
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    copy.rename(path)


def deleted(path: Path) -> None:
    path.unlink()


def moved(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def emptied(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate()


HAPPENS: dict[str, tuple[str, Happens]] = {
    "deleted": ("", deleted),
    "replaced": ("", replaced),
    "moved": ("", moved),
    "deleted log": ("-wal", deleted),
    "replaced log": ("-wal", replaced),
    "deleted index": ("-shm", deleted),
    "replaced index": ("-shm", replaced),
}


@pytest.fixture
async def mine(tmp_path: Path, clock: VirtualClock) -> SqliteStore:
    store = SqliteStore(str(tmp_path / "store.db"), synchronous="NORMAL", clock=clock)
    await store.migrate()
    return store


@pytest.fixture(params=HAPPENS)
def happen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], None]:
    ending, change = HAPPENS[request.param]
    return partial(change, tmp_path / f"store.db{ending}")


async def refusals(store: SqliteStore, clock: VirtualClock) -> dict[str, FlowFabricError | None]:
    """What every verb of the store says, by its name."""
    now_ms = clock.now_ms()
    verbs: dict[str, Callable[[], Awaitable[object]]] = {
        "insert": lambda: store.insert(submissions([order(7)], now_ms), now_ms),
        "claim": lambda: take(store, clock),
        "apply": lambda: store.apply([], now_ms),
        "commit": lambda: store.commit(Changeset(), now_ms),
        "load": lambda: store.load(Want(ids=[execution_id(0)])),
        "endings": lambda: store.endings([execution_id(0)]),
        "due": lambda: store.due(now_ms, 10),
        "find": lambda: store.find(Query()),
        "find_flows": lambda: store.find_flows(FlowQuery()),
        "graph": lambda: store.graph([Sight(flow=FLOW)]),
        "tail": lambda: store.tail(Feed()),
        "departing": lambda: store.departing(now_ms, 10),
        "lanes": lambda: store.lanes("", 10),
        "shifts": lambda: store.shifts([], now_ms),
    }
    found: dict[str, FlowFabricError | None] = {}
    for name, verb in verbs.items():
        try:
            await verb()
        except FlowFabricError as error:
            found[name] = error
        else:
            found[name] = None
    return found


async def settled(store: SqliteStore) -> None:
    """Until the folder has been the same for so long that a look at it is enough."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not store._watched()._settled:
            await store.find(Query())


@pytest.mark.parametrize("is_settled", [False, True], ids=["at once", "settled"])
async def test_every_verb_says_that_the_file_is_not_there_any_more(
    mine: SqliteStore, clock: VirtualClock, happen: Callable[[], None], *, is_settled: bool
) -> None:
    await put(mine, clock, order(0))
    if is_settled:
        await settled(mine)
    happen()
    for name, error in (await refusals(mine, clock)).items():
        assert isinstance(error, StoreMismatch), name
        assert "while it was in use" in error.message, name
        assert "start again" in error.hint, name
    await mine.close()


async def test_a_file_that_was_emptied_where_it_is_is_refused_soon(
    mine: SqliteStore, clock: VirtualClock, tmp_path: Path
) -> None:
    async def write_on() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                await put(mine, clock, order(0))

    await settled(mine)
    emptied(tmp_path / "store.db")
    with pytest.raises(StoreMismatch, match="was emptied while it was in use"):
        await write_on()
    await mine.close()


async def test_a_link_that_is_led_to_another_file_is_refused(
    clock: VirtualClock, tmp_path: Path
) -> None:
    (tmp_path / "links").mkdir()
    link, file = tmp_path / "links" / "store.db", tmp_path / "real.db"
    link.symlink_to(file)
    store = SqliteStore(str(link), synchronous="NORMAL", clock=clock)
    await store.migrate()
    await settled(store)
    link.unlink()
    link.symlink_to(tmp_path / "other.db")
    (tmp_path / "other.db").touch()
    with pytest.raises(StoreMismatch, match="replaced by another file"):
        await put(store, clock, order(0))
    await store.close()


async def test_a_folder_that_is_replaced_is_refused(clock: VirtualClock, tmp_path: Path) -> None:
    folder, copy = tmp_path / "folder", tmp_path / "copy"
    folder.mkdir()
    store = SqliteStore(str(folder / "store.db"), synchronous="NORMAL", clock=clock)
    await store.migrate()
    await settled(store)
    shutil.copytree(folder, copy, copy_function=shutil.copy2)
    shutil.copystat(folder, copy)
    folder.rename(tmp_path / "elsewhere")
    copy.rename(folder)
    with pytest.raises(StoreMismatch, match="replaced by another file"):
        await put(store, clock, order(0))
    await store.close()


async def test_a_file_that_comes_back_is_not_trusted_before_it_is_opened_again(
    mine: SqliteStore, clock: VirtualClock, tmp_path: Path
) -> None:
    path = tmp_path / "store.db"
    moved(path)
    with pytest.raises(StoreMismatch):
        await put(mine, clock, order(0))
    path.with_name("elsewhere").rename(path)
    with pytest.raises(StoreMismatch):
        await put(mine, clock, order(1))
    await mine.close()
    await mine.migrate()
    await put(mine, clock, order(2))
    await mine.close()


async def test_a_write_that_went_into_a_lost_file_is_not_answered_as_written(
    mine: SqliteStore, clock: VirtualClock, tmp_path: Path
) -> None:
    """The file is deleted inside of the transaction, after everything was looked at."""

    def work(connection: sqlite3.Connection) -> None:
        connection.execute("SELECT 1")
        (tmp_path / "store.db").unlink()

    with pytest.raises(StoreMismatch):
        await mine._write(work, rows=1)
    await mine.close()


async def test_a_reader_that_is_opened_later_opens_no_other_file(
    mine: SqliteStore, clock: VirtualClock, tmp_path: Path
) -> None:
    replaced(tmp_path / "store.db")
    with pytest.raises(StoreMismatch):
        await mine.find(Query())
    await mine.close()


async def test_who_waits_hears_that_the_file_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    app = App(f"sqlite:///{path}")

    @app.task
    async def never() -> None: ...

    handle = await never.start()
    waiting = asyncio.create_task(handle.result())
    await never.start()
    path.unlink()
    with pytest.raises(StoreMismatch, match="while it was in use"):
        await waiting
    await app.close()


async def test_a_worker_whose_file_is_gone_ends_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    app = App(f"sqlite:///{path}")
    begun = asyncio.Event()

    @app.task
    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    await endless.start()
    working = asyncio.create_task(app.work())
    await begun.wait()
    path.unlink()
    with pytest.raises(StoreMismatch, match="while it was in use"):
        await working


async def test_an_upgraded_file_is_a_mismatch_for_a_process_that_has_it_open(
    mine: SqliteStore, clock: VirtualClock, tmp_path: Path
) -> None:
    """As a newer program does it: tables change, and so does the version."""
    await put(mine, clock, order(0))
    await mine.find(Query())
    with sqlite3.connect(tmp_path / "store.db") as newer:
        newer.execute("ALTER TABLE execution RENAME TO execution_of_old")
        newer.execute("CREATE TABLE execution (id TEXT)")
        newer.execute("PRAGMA user_version = 99")
    newer.close()
    for name, error in (await refusals(mine, clock)).items():
        assert isinstance(error, StoreMismatch), (name, error)
        assert "99" in error.message, name
        assert error.hint == "upgrade FlowFabric on this machine", name
    await mine.close()
