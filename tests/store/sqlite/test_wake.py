"""Wake-ups between processes: a socket beside the file for each that listens, and looking for
others as the net under it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import stat
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from flowfabric.core.lifecycle import complete
from flowfabric.store.hints import Hint
from flowfabric.store.notices import encode_notice
from flowfabric.store.sqlite import SqliteStore, wake, watch, writer
from flowfabric.testing.build import ROUTE, ask
from tests.app.stage import PATIENCE_SECONDS
from tests.store.sqlite.listener import NEVER_SECONDS, settle, write

ROOT = Path(__file__).resolve().parents[3]


class Listener:
    """A store that somebody listens on, in this process."""

    def __init__(self, path: Path) -> None:
        self.store = SqliteStore(str(path), synchronous="NORMAL")
        self.hints: list[Hint] = []
        self._heard = asyncio.Event()

    async def open(self) -> None:
        await self.store.migrate()
        self.store.hints.subscribe(self._hear)
        await settle(self.store)
        self._heard.clear()
        self.hints.clear()

    def _hear(self, hint: Hint) -> None:
        self.hints.append(hint)
        self._heard.set()

    async def heard(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._heard.wait()
        self._heard.clear()


@asynccontextmanager
async def listening(path: Path) -> AsyncIterator[Listener]:
    listener = Listener(path)
    try:
        await listener.open()
        yield listener
    finally:
        await listener.store.close()


@asynccontextmanager
async def writing(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(path), synchronous="NORMAL")
    try:
        await store.migrate()
        await settle(store)
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def process(path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """One that listens; it can be woken, and does nothing else by itself."""
    command = (sys.executable, "-m", "tests.store.sqlite.listener", str(path))
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=pipe)
    try:
        assert await said(child) == "ready"
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def said(child: asyncio.subprocess.Process) -> str:
    assert child.stdout is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        return (await child.stdout.readline()).decode().strip()


def sockets(path: Path) -> list[Path]:
    return [each for each in path.parent.iterdir() if each.name.startswith(f"{path.name}-wake-")]


def bound(path: Path) -> socket.socket:
    """The socket of a process that does not come round to reading it."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    made.bind(f"{path}-wake-1-00000000")
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "flows.db"


@pytest.fixture
def no_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are not looked for by themselves, and a new socket is found by the next write."""
    monkeypatch.setattr(writer, "WATCH_SECONDS", NEVER_SECONDS)
    monkeypatch.setattr(writer, "IDLE_SECONDS", NEVER_SECONDS)
    monkeypatch.setattr(wake, "LISTING_SHARE", 0)


@pytest.mark.usefixtures("no_looking")
async def test_processes_wake_each_other(path: Path) -> None:
    async with listening(path) as here, process(path) as there:
        assert len(sockets(path)) == 2
        await write(here.store, 1)
        await here.heard()
        here.hints.clear()
        assert await said(there) == "heard"
        await here.heard()
        assert here.hints == [Hint(ready=(ROUTE,))]
        assert await there.wait() == 0
    assert sockets(path) == []


@pytest.mark.usefixtures("no_looking")
async def test_the_socket_of_a_killed_process_is_removed_by_whoever_meets_it(path: Path) -> None:
    async with writing(path) as store:
        async with process(path) as there:
            there.kill()
        assert len(sockets(path)) == 1
        await write(store, 1)
        await settle(store)
        assert sockets(path) == []


@pytest.mark.usefixtures("no_looking")
async def test_what_was_written_before_the_socket_was_there_is_found(path: Path) -> None:
    async with writing(path) as store:
        listener = Listener(path)
        await listener.store.migrate()
        await write(store, 1)
        listener.store.hints.subscribe(listener._hear)
        await listener.heard()
        await listener.store.close()


@pytest.mark.usefixtures("no_looking")
async def test_a_path_that_is_too_long_for_a_socket_leads_through_its_folder(
    tmp_path: Path,
) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    async with listening(folder / "flows.db") as here, writing(folder / "flows.db") as store:
        await write(store, 1)
        await here.heard()
    assert sockets(folder / "flows.db") == []


@pytest.mark.parametrize("trouble", ["long name", "no sockets", "read-only folder"])
async def test_a_process_without_a_socket_looks_for_others(
    tmp_path: Path,
    trouble: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "flowfabric.store")
    path = tmp_path / ("flows" * 20 if trouble == "long name" else "flows.db")
    if trouble == "no sockets":
        monkeypatch.delattr(socket, "AF_UNIX")
    if trouble == "read-only folder":

        def refuse(*_: object) -> str:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(wake.Place, "address_of", refuse)
    async with listening(path) as here, writing(path) as store:
        for number in range(2):
            await write(store, number)
            await here.heard()
        assert sockets(path) == []
    told = [record for record in caplog.records if "polling instead" in record.message]
    assert len(told) == 1


@pytest.mark.usefixtures("no_looking")
async def test_a_process_that_is_stopped_keeps_no_writer_waiting(path: Path) -> None:
    async with writing(path) as store:
        with bound(path) as stopped:
            sent = filled(stopped)
            async with asyncio.timeout(PATIENCE_SECONDS):
                for number in range(3):
                    await write(store, number)
            await settle(store)
            assert drained(stopped) == sent
            await write(store, 3)
            await settle(store)
            assert drained(stopped) == 1


def test_whoever_was_told_much_at_once_may_have_missed_something(path: Path) -> None:
    for crowd, told in ((1, []), (wake.CROWD, [Hint(foreign=True)])):
        notices = [encode_notice("", Hint(due_ms=number)) for number in range(crowd)]
        assert heard_at_once(path, notices)[crowd:] == told


def heard_at_once(path: Path, notices: Sequence[bytes]) -> list[Hint]:
    """What a socket that holds these tells."""
    heard: list[Hint] = []
    ear = wake.Ear(wake.Place(str(path)), heard.append)
    ear.close()
    ears, mouth = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ears, mouth:
        ears.setblocking(False)
        for notice in notices:
            mouth.send(notice)
        ear._socket = ears
        ear._hear()
    return heard


@pytest.mark.usefixtures("no_looking")
async def test_what_cannot_be_read_says_that_something_happened(path: Path) -> None:
    async with listening(path) as here:
        (found,) = sockets(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mouth:
            mouth.sendto(b"\xc1", str(found))
        await here.heard()
        assert here.hints == [Hint(foreign=True)]


@pytest.mark.usefixtures("no_looking")
async def test_an_end_elsewhere_is_named(path: Path) -> None:
    async with listening(path) as here, writing(path) as store:
        await write(store, 1)
        await here.heard()
        here.hints.clear()
        (lease,) = await store.claim(ask(await store.now()))
        now_ms = await store.now()
        await store.apply([complete(lease, now_ms, b"done")], now_ms)
        await here.heard()
        assert [hint.ended for hint in here.hints] == [(lease.id,)]


def filled(ear: socket.socket) -> int:
    """As many wake-ups as it takes until no more can be sent."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mouth:
        mouth.setblocking(False)
        for count in itertools.count():
            try:
                mouth.sendto(b"", ear.getsockname())
            except BlockingIOError:
                return count
    raise AssertionError


def drained(ear: socket.socket) -> int:
    """How many wake-ups have come."""
    count = 0
    try:
        while True:
            ear.recv(16)
            count += 1
    except BlockingIOError:
        return count


@pytest.mark.usefixtures("no_looking")
async def test_a_claim_wakes_nobody(path: Path) -> None:
    async with writing(path) as store:
        await write(store, 1)
        await settle(store)
        with bound(path) as ear:
            assert await store.claim(ask(await store.now()))
            await settle(store)
            assert drained(ear) == 0
            await write(store, 2)
            await settle(store)
            assert drained(ear) == 1


@pytest.mark.usefixtures("no_looking")
async def test_a_work_that_failed_wakes_nobody(path: Path) -> None:
    async with writing(path) as store:
        with bound(path) as ear:
            assert store._writer is not None
            failing = store._writer.submit(lambda connection: connection.execute("nonsense"))
            with pytest.raises(Exception, match="nonsense"):
                await asyncio.wrap_future(failing)
            await settle(store)
            assert drained(ear) == 0


@pytest.mark.usefixtures("no_looking")
async def test_only_sockets_are_removed(path: Path) -> None:
    taken = path.with_name("flows.db-wake-1-00000000")
    kept = [taken, path.with_name("flows.db-wake-notes")]
    async with writing(path) as store:
        for each in kept:
            each.write_text("mine")
        await write(store, 1)
        await settle(store)
        await store.drop()
    assert [each.read_text() for each in kept] == ["mine", "mine"]


async def test_a_socket_is_private_and_goes_with_its_store(path: Path) -> None:
    before = os.umask(0)
    try:
        async with listening(path):
            (found,) = sockets(path)
            assert stat.filemode(found.stat().st_mode) == "srw-------"
    finally:
        os.umask(before)
    assert sockets(path) == []


async def test_who_only_writes_has_no_socket(path: Path) -> None:
    async with writing(path) as store:
        await write(store, 1)
        await settle(store)
        assert sockets(path) == []


async def test_drop_removes_the_sockets_of_processes_that_are_gone(path: Path) -> None:
    async with writing(path) as store:
        bound(path).close()
        assert len(sockets(path)) == 1
        await store.drop()
    assert sockets(path) == []


@pytest.mark.usefixtures("no_looking")
async def test_a_folder_is_listed_again_only_when_it_has_changed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listings: list[list[str]] = []
    names = wake.Place.names

    def counted(place: wake.Place) -> list[str]:
        listings.append(names(place))
        return listings[-1]

    monkeypatch.setattr(wake.Place, "names", counted)
    # Times of a folder that differ are told apart, however close they are.
    monkeypatch.setattr(watch, "FINE_NS", -1)
    async with writing(path) as store:
        await write(store, 0)
        await settle(store)
        before = len(listings)
        for number in range(1, 5):
            await write(store, number)
        await settle(store)
        assert len(listings) == before
        with bound(path) as ear:
            await write(store, 5)
            await settle(store)
            assert (len(listings), drained(ear)) == (before + 1, 1)


@pytest.mark.usefixtures("no_looking")
async def test_a_folder_that_changes_all_the_time_is_not_listed_all_the_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "LISTING_SHARE", 1_000_000_000)
    async with writing(path) as store:
        await write(store, 0)
        await settle(store)
        with bound(path) as ear:
            await write(store, 1)
            await settle(store)
            assert drained(ear) == 0
