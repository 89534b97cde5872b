"""What ends a task in a process of its own: a timeout, a cancel, a lost lease, a drain, a kill."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import flowfabric as ff
from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import State
from flowfabric.testing.build import policy
from flowfabric.worker.child import pool, process
from flowfabric.worker.child.process import ChildProcess
from flowfabric.worker.worker import Worker
from tests.worker import isolating
from tests.worker.alive import begun, dead, is_alive
from tests.worker.floor import PATIENCE_SECONDS, Floor
from tests.worker.processes import process as worker_process

PROGRAM = Path(__file__).with_name("isolating.py")
TIMEOUT_MS = 10_000


@pytest.fixture(params=["memory"])
def store_kind(request: pytest.FixtureRequest) -> str:
    """How a process is ended is the same on every store."""
    return str(request.param)


@pytest.fixture
def floor(floor: Floor) -> Floor:
    for name in ("hang", "ignore", "plain"):
        floor.handlers[name] = getattr(isolating, name).handler
    return floor


async def time_out(floor: Floor, worker: Worker, id: ExecutionId) -> None:
    floor.clock.advance(TIMEOUT_MS)
    await floor.timekeeper.run_once()
    await worker._keeper.renew_all()


async def cancel(floor: Floor, worker: Worker, id: ExecutionId) -> None:
    await floor.engine.cancel(id)


async def lose(floor: Floor, worker: Worker, id: ExecutionId) -> None:
    """Taken away and not given to another, which would begin the same again."""
    await floor.engine.revoke(id)
    await floor.engine.cancel(id)
    await worker._keeper.renew_all()


End = Callable[[Floor, Worker, ExecutionId], Awaitable[None]]
WAYS: dict[str, tuple[End, State]] = {
    "attempt_timeout": (time_out, State.EXPIRED),
    "cancel": (cancel, State.CANCELLED),
    "a lost lease": (lose, State.CANCELLED),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_task_that_hangs_is_ended_with_all_that_it_started(
    floor: Floor, tmp_path: Path, way: str
) -> None:
    end, state = WAYS[way]
    place = tmp_path / "place"
    id = await floor.submit("hang", str(place), policy=policy(attempt_timeout_ms=TIMEOUT_MS))
    async with floor.working(floor.worker(slots=1)) as worker:
        pids = await begun(place)
        await end(floor, worker, id)
        await dead(*pids)
        assert await floor.count(state) == 1
        # Its slot is free again, and it was the only one.
        other = await floor.submit("plain")
        await floor.until(State.COMPLETED, 1)
        assert worker._slots.room == 1
    assert int(await floor.engine.read.result(other) or b"0") not in pids


async def test_a_drain_hands_back_what_it_ended(floor: Floor, tmp_path: Path) -> None:
    place = tmp_path / "place"
    id = await floor.submit("hang", str(place))
    worker = floor.worker(drain_seconds=0.0)
    async with floor.working(worker):
        pids = await begun(place)
    assert not any(map(is_alive, pids[:1]))
    await dead(*pids)
    assert await floor.kinds(id) == ["submitted", "claimed", "released"]
    assert worker._slots.room == worker._slots.count


async def test_a_drain_waits_for_a_process_that_has_to_be_killed(
    floor: Floor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("flowfabric.worker.worker.CANCEL_SECONDS", 0.0)
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.1)
    place = tmp_path / "place"
    id = await floor.submit("ignore", str(place))
    async with floor.working(floor.worker(drain_seconds=0.0)):
        pids = await begun(place)
    assert "behind" not in caplog.text
    await dead(*pids)
    assert await floor.kinds(id) == ["submitted", "claimed", "released"]


async def test_a_process_that_ignores_its_end_is_killed(
    floor: Floor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.01)
    place = tmp_path / "place"
    id = await floor.submit("ignore", str(place))
    async with floor.working():
        pids = await begun(place)
        await floor.engine.cancel(id)
        await dead(*pids)


async def test_a_process_that_dies_takes_what_it_started_with_it(
    floor: Floor, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    await floor.submit("hang", str(place))
    async with floor.working():
        first, second = await begun(place)
        os.kill(first, signal.SIGKILL)
        await floor.until(State.FAILED, 1)
        await dead(first, second)


async def test_an_end_that_is_cancelled_again_and_again_still_ends_it() -> None:
    children = pool.ChildPool()
    child = children.take()
    ending = asyncio.create_task(children.end(child))
    for _ in range(3):
        await asyncio.sleep(0)
        ending.cancel()
    await ending
    assert not child.is_alive
    await dead(child.id)


async def test_a_process_that_is_idle_hears_that_its_worker_wants_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "GRACE_SECONDS", PATIENCE_SECONDS)
    child = ChildProcess()
    await child.dismiss()
    assert child._code.result() == 0


def elsewhere(place: str) -> None:
    """The worker has a task of this name, and runs that."""


def forked_id() -> int:
    """As well."""
    return 0


NAMES = ["hang", "ignore"] + (["keep_interpreter"] if sys.platform == "linux" else [])


@pytest.mark.parametrize("name", NAMES)
async def test_a_killed_worker_leaves_no_process_behind(name: str, tmp_path: Path) -> None:
    url, place = f"sqlite:///{tmp_path / 'work.db'}", tmp_path / "place"
    client = ff.App(url)
    task = client.task(name=name)(elsewhere)
    with worker_process(url, program=PROGRAM) as worker:
        await task.start(str(place))
        pids = await begun(place)
        worker.send(signal.SIGKILL)
        await worker.ended()
        await dead(*pids)
    await client.close()


async def test_a_fork_of_the_worker_does_not_keep_its_processes_alive(tmp_path: Path) -> None:
    url, place = f"sqlite:///{tmp_path / 'work.db'}", tmp_path / "place"
    client = ff.App(url)
    forked = client.task(name="fork_here")(forked_id)
    hang = client.task(name="hang")(elsewhere)
    with worker_process(url, program=PROGRAM) as worker:
        await hang.start(str(place))
        pids = await begun(place)
        fork = await (await forked.start()).result()
        worker.send(signal.SIGKILL)
        await worker.ended()
        try:
            await dead(*pids)
            assert is_alive(fork)
        finally:
            os.kill(fork, signal.SIGKILL)
    await client.close()


async def test_a_worker_that_is_told_to_stop_ends_its_processes(tmp_path: Path) -> None:
    url, place = f"sqlite:///{tmp_path / 'work.db'}", tmp_path / "place"
    client = ff.App(url)
    hang = client.task(name="hang")(elsewhere)
    with worker_process(url, program=PROGRAM) as worker:
        handle = await hang.start(str(place))
        pids = await begun(place)
        worker.send(signal.SIGTERM)
        assert await worker.says() == "bye"
        assert await worker.ended() == 0
        await dead(*pids)
    kinds = [event.kind for event in await handle.events()]
    assert kinds == ["submitted", "claimed", "released"]
    await client.close()
