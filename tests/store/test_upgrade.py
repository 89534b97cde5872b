"""Stores made by every released schema version, opened by the code of today."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from flowfabric.core.lifecycle import complete
from flowfabric.core.model import Inserted
from flowfabric.core.states import State
from flowfabric.engine.timekeeper import Timekeeper
from flowfabric.errors import StoreMismatch
from flowfabric.store import Store, open_store
from flowfabric.store.clock import FollowingClock
from flowfabric.store.memory import MemoryStore
from flowfabric.store.upkeep import Upkeep
from flowfabric.testing.build import execution_id, order, submissions
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import apply, head, take
from flowfabric.testing.picture import look
from tests.conftest import discard
from tests.flow.desk import FlowDesk
from tests.servers import store_url
from tests.store import story

KEPT = [(kind, name) for kind in story.SAVE for name in story.versions(kind)]
MADE = [(kind, name) for kind, name in KEPT if story.is_served(kind, name)]
REFUSED = [(kind, name) for kind, name in KEPT if not story.is_served(kind, name)]
# Longer than a dispatcher of any version keeps a flow to itself.
TAKEN_MS = 10_000
WITH_FLOW = [
    (kind, name) for kind, name in MADE if story.number_of(name) >= story.FLOWS_SINCE[kind]
]


async def opened(kind: str, name: str, path: Path, clock: VirtualClock) -> Store:
    if kind == "sqlite":
        return await story.open_sqlite(name, path, clock)
    if kind == "valkey":
        return await story.open_valkey(name, store_url(kind, path), clock)
    return await story.open_postgres(name, store_url(kind, path), clock)


def test_there_is_a_store_of_every_version() -> None:
    for kind in story.SAVE:
        assert len(story.versions(kind)) == story.version(kind)
        newest = story.MADE / f"{kind}-{story.version(kind)}"
        assert newest.with_name(f"{newest.name}.layout").exists()


def test_what_is_kept_is_never_made_again() -> None:
    """Two layouts under one number could not be told apart."""
    sums = dict(line.split()[::-1] for line in story.SUMS.read_text(encoding="utf-8").splitlines())
    for path in sorted(story.MADE.iterdir()):
        if path != story.SUMS:
            assert sums.get(path.name) == sha256(path.read_bytes()).hexdigest(), path.name
    assert {path.name for path in story.MADE.iterdir()} == {*sums, story.SUMS.name}


@pytest.mark.parametrize("kind", story.SAVE)
async def test_a_layout_that_changed_has_a_new_version(
    kind: str, tmp_path: Path, clock: VirtualClock
) -> None:
    """Compared with the layout that was kept with the version: migrations and words of records,
    tables, kinds of keys. If this fails, what is stored has changed: raise the version, decide
    whether older stores are upgraded or refused, and run `python -m tests.store.story KIND`."""
    kept = story.MADE / f"{kind}-{story.version(kind)}.layout"
    store = open_store(store_url(kind, tmp_path / "store.db"), clock=clock)
    await store.migrate()
    saved = await story.retold(kind, store, clock)
    await discard(store)
    if kept.exists():
        lines = "\n".join([*story.layout_of(kind, saved), ""])
        assert lines.splitlines() == kept.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(("kind", "name"), REFUSED, ids=[name for _, name in REFUSED])
async def test_a_store_of_a_version_that_is_no_longer_served_is_refused_with_what_to_do(
    kind: str, name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    store = await opened(kind, name, tmp_path / "store.db", clock)
    assert isinstance(store, Upkeep)
    for verb in (store.migrate, store.unmigrated, store.sizes):
        with pytest.raises(StoreMismatch, match="protocol 1") as refused:
            await verb()
        assert "ff db drop" in refused.value.hint
    await discard(store)


@pytest.mark.parametrize(("kind", "name"), MADE, ids=[name for _, name in MADE])
async def test_a_store_of_an_earlier_version_is_upgraded_and_goes_on(
    kind: str, name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    model = MemoryStore(clock)
    await story.tell_all(model, clock, kind, story.number_of(name))
    store = await opened(kind, name, tmp_path / "store.db", clock)
    await store.migrate()
    now_ms = clock.now_ms()
    assert (await look(store, now_ms)).alike() == (await look(model, now_ms)).alike()
    assert await story.flow_of(store) == await story.flow_of(model)

    repeated = submissions([order(9, key="key", digest="one")], now_ms)
    known = Inserted(execution_id(0), created=False, digest="one")
    assert await store.insert(repeated, now_ms) == [known]
    clock.advance(story.DELAY_MS)
    while (await Timekeeper(store, FollowingClock(clock)).run_once()).again:
        pass
    for lease in await take(store, clock, 3) + await take(store, clock, lanes=("busy",)):
        await apply(store, clock, complete(lease, clock.now_ms(), b"1"))
    states = [(await head(store, execution_id(number))).state for number in range(5)]
    assert states == [State.COMPLETED] * 5
    await discard(store)


@pytest.mark.parametrize(("kind", "name"), WITH_FLOW, ids=[name for _, name in WITH_FLOW])
async def test_a_flow_of_an_earlier_version_goes_on_where_it_was(
    kind: str, name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    """What was owed is paid, what was not dispatched is, and what waits is released."""
    await story.tell_all(MemoryStore(clock), clock, kind, story.number_of(name))
    store = await opened(kind, name, tmp_path / "store.db", clock)
    desk = FlowDesk(store, clock)
    await desk.engine.open()
    assert {line.kind for line in await desk.lines()} == {"cancel_siblings", "ended"}
    clock.advance(TAKEN_MS)
    await desk.dispatch()
    assert await desk.states("abx") == {"a": "completed", "b": "cancelled", "x": "waiting"}
    for each in "dyzx":
        await desk.ended(each)
    assert await desk.counters() == {"completed": 6, "cancelled": 1}
    assert await desk.lines() == []
    await discard(store)
