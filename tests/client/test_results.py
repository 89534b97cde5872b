"""The waiting room: who waits hears of the end, whoever wrote it, and asks the store seldom."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from flowfabric import App, Handle, StoreUnavailable, Task
from flowfabric.client import idle_waits, results
from flowfabric.core.states import PublicState
from flowfabric.store import open_store
from flowfabric.testing.build import execution_id
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb
from tests.app.stage import PATIENCE_SECONDS, Gate, eventually, running
from tests.servers import store_url


@pytest.fixture
def faulty(store_kind: str, tmp_path: Path) -> FaultyStore:
    return FaultyStore(open_store(store_url(store_kind, tmp_path / "app.db")))


@pytest.fixture
async def app(faulty: FaultyStore) -> AsyncIterator[App]:
    app = App(store=faulty, concurrency=1_000)
    yield app
    await app.close()


def echo_of(app: App) -> Task[..., int]:
    @app.task
    async def echo(n: int) -> int:
        return n

    return echo


async def test_a_thousand_who_wait_ask_a_handful_of_times(app: App, faulty: FaultyStore) -> None:
    echo = echo_of(app)
    handles = await app.start_many(echo.bind(n) for n in range(1_000))
    waiting = [asyncio.create_task(handle.result()) for handle in handles]
    async with running(app):
        assert await asyncio.gather(*waiting) == list(range(1_000))
    # Twice five hundred when they began to wait; ends in this process are handed over.
    assert faulty.calls[Verb.ENDINGS] <= 8


async def test_who_stops_to_wait_is_not_looked_for_among_all_who_wait(app: App) -> None:
    handle = await echo_of(app).start(1)
    waiting = [asyncio.create_task(handle.result()) for _ in range(50)]
    room = (await app.connect()).results
    await eventually(lambda: _waits(room, handle, len(waiting)))
    walked: list[object] = []

    class Watched(type(room._waiting[handle._id])):  # type: ignore[misc]
        def __iter__(self) -> Iterator[object]:
            walked.append(self)
            return iter(super().__iter__())

    room._waiting[handle._id] = Watched(room._waiting[handle._id])
    walked.clear()
    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)
    assert walked == []
    assert handle._id not in room._waiting


async def _waits(room: results.Results, handle: Handle[int], count: int) -> bool:
    return len(room._waiting.get(handle._id, ())) == count


async def _followed(app: App, echo: Task[..., int]) -> None:
    """From here on the client knows where in the log it is."""
    client = await app.connect()
    assert await (await echo.start(0)).result() == 0
    await eventually(lambda: _has_cursor(client.results))


async def _has_cursor(room: results.Results) -> bool:
    return bool(room._cursor)


async def test_what_is_started_while_the_log_is_followed_is_not_looked_up(
    app: App, faulty: FaultyStore
) -> None:
    echo = echo_of(app)
    async with running(app):
        await _followed(app, echo)
        asked = faulty.calls[Verb.ENDINGS]
        assert await (await echo.start(3)).result() == 3
        handles = await app.start_many(echo.bind(n) for n in range(10))
        results = await asyncio.gather(*(handle.result() for handle in handles))
    assert results == list(range(10))
    assert faulty.calls[Verb.ENDINGS] == asked


async def test_an_end_that_came_before_the_wait_is_looked_up(app: App, faulty: FaultyStore) -> None:
    echo = echo_of(app)
    async with running(app):
        await _followed(app, echo)
        asked = faulty.calls[Verb.ENDINGS]
        client = await app.connect()
        handle = await echo.start(3)
        await eventually(lambda: _has_heard(client.results, handle))
        assert await handle.result() == 3
    assert faulty.calls[Verb.ENDINGS] == asked + 1


async def _has_heard(room: results.Results, handle: Handle[int]) -> bool:
    return handle._id not in room._expected


async def _has_ended(handle: Handle[int]) -> bool:
    return (await handle.status()).public_state is PublicState.COMPLETED


async def test_a_key_that_was_used_before_is_looked_up(app: App) -> None:
    echo = echo_of(app)
    async with running(app):
        first = await echo.options(idempotency_key="k").start(3)
        assert await first.result() == 3
        await _followed(app, echo)
        client = await app.connect()
        again = await echo.options(idempotency_key="k").start(3)
        assert (again.id, await again.result()) == (first.id, 3)
    assert client.results._expected == {}


async def test_a_submit_that_failed_is_expected_no_longer(app: App, faulty: FaultyStore) -> None:
    echo = echo_of(app)
    async with running(app):
        await _followed(app, echo)
    client = await app.connect()
    faulty.plan.append(Fault(Verb.INSERT, 1, Kind.BEFORE, times=100))
    with pytest.raises(StoreUnavailable):
        await echo.start(1)
    assert client.results._expected == {}


async def test_an_end_elsewhere_between_start_and_wait_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "NET_SECONDS", 1_000.0)
    url = store_url("sqlite", tmp_path / "shared.db")
    ours, theirs = App(url), App(url)
    here = echo_of(ours)
    echo_of(theirs)
    async with running(theirs):
        await _followed(ours, here)
        handle = await here.start(4)
        await eventually(lambda: _has_ended(handle))
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await handle.result() == 4
    await ours.close()


async def test_only_so_many_are_expected_at_a_time(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "EXPECTED_LIMIT", 3)
    echo = echo_of(app)
    ids = [execution_id(number) for number in range(5)]
    async with running(app):
        await _followed(app, echo)
        client = await app.connect()
        client.results.expect(ids)
        assert list(client.results._expected) == ids[2:]


async def test_a_result_that_was_there_before_is_read(app: App) -> None:
    echo = echo_of(app)
    async with running(app):
        handle = await echo.start(3)
        assert await handle.result() == 3
    again = App(store=app.engine.store)
    assert await again.handle(handle.id).result() == 3
    await again.close()


async def test_the_end_is_heard_from_another_app_on_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the net, only the log that the other's write points to can tell.
    monkeypatch.setattr(results, "NET_SECONDS", 1_000.0)
    url = store_url("sqlite", tmp_path / "shared.db")
    ours, theirs = App(url), App(url)
    here, gate = echo_of(ours), Gate()

    @theirs.task
    async def echo(n: int) -> int:
        await gate.wait()
        return n * 10

    handle = await here.start(4)
    waiting = asyncio.create_task(handle.result())
    async with running(theirs):
        await gate.reached.wait()
        gate.opened.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await waiting == 40
    await ours.close()


async def test_the_net_catches_an_end_that_no_hint_told(
    app: App, faulty: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "NET_SECONDS", 0.01)
    echo = echo_of(app)
    handle = await echo.start(5)
    waiting = asyncio.create_task(handle.result())
    await eventually(lambda: _has_followed(faulty))
    client = await app.connect()
    app.engine.hints.unsubscribe(client.results._hear)
    async with running(app):
        assert await waiting == 5


async def _has_followed(faulty: FaultyStore) -> bool:
    return faulty.calls[Verb.TAIL] > 1


async def test_a_store_that_does_not_answer_is_told_to_who_waits(
    app: App, faulty: FaultyStore
) -> None:
    echo = echo_of(app)
    handle = await echo.start(1)
    faulty.plan.append(Fault(Verb.ENDINGS, 1, Kind.BEFORE))
    with pytest.raises(StoreUnavailable):
        await handle.result()
    async with running(app):
        assert await handle.result() == 1


async def test_an_error_that_nobody_expected_hangs_nobody(app: App, faulty: FaultyStore) -> None:
    echo = echo_of(app)
    handle = await echo.start(1)
    faulty.plan.append(Fault(Verb.ENDINGS, 1, Kind.TIMEOUT))
    with pytest.raises(TimeoutError, match="endings did not answer"):
        await handle.result()


async def test_one_row_that_cannot_be_read_spoils_no_other(tmp_path: Path) -> None:
    app = App(store_url("sqlite", tmp_path / "app.db"))
    echo = echo_of(app)
    handles = await app.start_many(echo.bind(n) for n in range(5))
    with sqlite3.connect(tmp_path / "app.db") as raw:
        raw.execute("UPDATE execution SET state = 'melted' WHERE id = ?", (handles[2]._id,))
    raw.close()
    waiting = [asyncio.create_task(handle.result()) for handle in handles]
    async with running(app):
        answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [answers[n] for n in (0, 1, 3, 4)] == [0, 1, 3, 4]
    assert isinstance(answers[2], Exception)


async def test_who_no_longer_waits_is_forgotten(app: App) -> None:
    echo = echo_of(app)
    handle = await echo.start(1)
    client = await app.connect()
    waiting = [asyncio.create_task(handle.result()) for _ in range(3)]
    await eventually(lambda: _waiting(client.results, 3))
    waiting[0].cancel()
    await eventually(lambda: _waiting(client.results, 2))
    async with running(app):
        assert await waiting[1] == await waiting[2] == 1
    assert client.results._waiting == {}


async def _waiting(room: results.Results, count: int) -> bool:
    return sum(map(len, room._waiting.values())) == count


@pytest.mark.case("SH-006")
async def test_the_follower_of_the_log_ends_with_the_app(app: App, faulty: FaultyStore) -> None:
    echo = echo_of(app)
    before = asyncio.all_tasks()
    handle = await echo.start(1)
    waiting = asyncio.create_task(handle.result())
    await eventually(lambda: _has_begun(faulty))
    assert len(asyncio.all_tasks()) > len(before) + 1
    async with asyncio.timeout(2):
        await app.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await waiting
    assert asyncio.all_tasks() == before


async def _has_begun(faulty: FaultyStore) -> bool:
    return faulty.calls[Verb.TAIL] > 0


async def test_a_failing_log_is_asked_again(
    app: App, faulty: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "NET_SECONDS", 0.001)
    echo = echo_of(app)
    faulty.plan.append(Fault(Verb.TAIL, 1, Kind.BEFORE, times=3))
    handle = await echo.start(1)
    waiting = asyncio.create_task(handle.result())
    await eventually(lambda: _has_recovered(faulty))
    async with running(app):
        assert await waiting == 1


async def _has_recovered(faulty: FaultyStore) -> bool:
    return faulty.calls[Verb.TAIL] > 4


async def test_an_error_that_nobody_expected_does_not_end_the_follower(
    app: App, faulty: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "NET_SECONDS", 0.001)
    echo = echo_of(app)
    faulty.plan.append(Fault(Verb.TAIL, 1, Kind.TIMEOUT, times=2))
    handle = await echo.start(1)
    waiting = asyncio.create_task(handle.result())
    await eventually(lambda: _has_recovered(faulty))
    client = await app.connect()
    app.engine.hints.unsubscribe(client.results._hear)
    async with running(app):
        assert await waiting == 1


async def test_a_wait_for_a_flow_warns_of_members_that_no_live_worker_serves(
    app: App,
    faulty: FaultyStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also of one that had to wait for others when it was first looked at."""
    monkeypatch.setattr(results, "NET_SECONDS", 0.01)
    monkeypatch.setattr(idle_waits, "PATIENCE_MS", 0)
    caplog.set_level(logging.WARNING, "flowfabric.client")
    gate = Gate()

    @app.task
    async def first() -> int:
        await gate.wait()
        return 1

    @app.task(lane="mial")
    async def second(n: int) -> int:
        return n

    graph = app.graph("unserved")
    last = graph.add(second, graph.add(first))
    async with running(app, lanes=("default",)):
        await eventually(lambda: _is_registered(app))
        run = await graph.submit()
        waiting = asyncio.create_task(run.wait())
        await gate.reached.wait()
        looked = faulty.calls[Verb.LOAD]
        await eventually(lambda: _was_called(faulty, Verb.LOAD, looked + 3))
        assert warnings(caplog) == []
        gate.opened.set()
        await eventually(lambda: _was_warned(caplog))
        looked = faulty.calls[Verb.TAIL]
        await eventually(lambda: _was_called(faulty, Verb.TAIL, looked + 3))
        await run.cancel()
        await waiting
    told = "no live worker serves lane `mial`; 1 worker is alive"
    assert warnings(caplog) == [f"waiting for {last.id}: {told}"]


async def _is_registered(app: App) -> bool:
    return bool(await app.workers())


async def _was_called(store: FaultyStore, verb: Verb, times: int) -> bool:
    return store.calls[verb] >= times


async def _was_warned(caplog: pytest.LogCaptureFixture) -> bool:
    return bool(warnings(caplog))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if each.name == "flowfabric.client"]
