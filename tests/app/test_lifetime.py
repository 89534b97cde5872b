"""An app is opened when it is used, closed when its block is left, and can be used again."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from flowfabric import App, PublicState, Refused, StoreUnavailable, Task
from flowfabric.store import open_store
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb
from flowfabric.worker.worker import Worker
from tests.app.stage import Gate, kinds, running


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if "flowfabric" in thread.name}


def test_nothing_is_opened_before_it_is_used(tmp_path: Path) -> None:
    before = threads()
    app = App(f"sqlite:///{tmp_path}/flows.db")

    @app.task
    async def work() -> None: ...

    work.bind()
    assert list(tmp_path.iterdir()) == []
    assert threads() == before


async def test_a_block_leaves_no_thread_and_no_task_behind(app: App) -> None:
    @app.task
    def work() -> int:
        return 1

    before, others = asyncio.all_tasks(), threads()
    async with running(app):
        assert await (await work.start()).result() == 1
    assert asyncio.all_tasks() == before
    # Threads of a pool end by themselves once it is shut down.
    for thread in threads() - others:
        if thread.name.startswith("flowfabric-task"):
            thread.join(10)
    assert threads() <= others


@pytest.mark.case("SH-008")
async def test_a_block_can_be_left_at_once(app: App) -> None:
    for _ in range(3):
        async with running(app):
            pass


@pytest.mark.case("SH-007")
async def test_only_one_worker_runs_per_app(app: App) -> None:
    async with running(app):
        with pytest.raises(Refused, match="already running"):
            async with app.running():
                pass
        before = len(asyncio.all_tasks())
        with pytest.raises(Refused, match="already running"):
            await app.work()
        assert len(asyncio.all_tasks()) == before


async def test_an_app_can_be_run_again(app: App) -> None:
    @app.task
    async def work(n: int) -> int:
        return n

    handles = []
    for number in range(3):
        async with running(app):
            handles.append(await work.start(number))
            assert await handles[-1].result() == number
        await app.close()
    # A handle of an earlier block is good for a later one.
    async with running(app):
        assert [await handle.result() for handle in handles] == [0, 1, 2]


async def test_closing_twice_is_harmless(app: App) -> None:
    await app.close()
    await app.connect()
    await app.close()
    await app.close()


@pytest.mark.parametrize("error", [ValueError, KeyError, asyncio.CancelledError])
async def test_an_error_in_the_block_comes_out_as_it_is(
    app: App, error: type[BaseException]
) -> None:
    gate = Gate()

    @app.task
    async def work() -> int:
        await gate.wait()
        return 5

    handle = await work.start()

    async def block() -> None:
        async with running(app):
            await gate.reached.wait()
            gate.opened.set()
            raise error("mine")

    with pytest.raises(error, match="mine"):
        await block()
    # What ran was finished and stored on the way out.
    async with running(app):
        assert await kinds(handle) == ["submitted", "claimed", "completed"]
        assert await handle.result() == 5


async def test_a_cancelled_block_still_drains(app: App) -> None:
    gate = Gate()

    @app.task
    async def work() -> int:
        await gate.wait()
        return 5

    handle = await work.start()

    async def block() -> None:
        async with running(app):
            await asyncio.Event().wait()

    serving = asyncio.create_task(block())
    await gate.reached.wait()
    serving.cancel()
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await serving
    await app.connect()
    assert (await handle.status()).public_state is PublicState.COMPLETED


async def test_a_block_that_is_cancelled_twice_does_not_wait(url: str) -> None:
    app = App(url, drain="1000s")
    gate = Gate()

    @app.task
    async def work() -> None:
        await gate.wait()

    handle = await work.start()

    async def block() -> None:
        async with app.running():
            await asyncio.Event().wait()

    serving = asyncio.create_task(block())
    await gate.reached.wait()
    for _ in range(2):
        serving.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert gate.cancelled.is_set()
    await app.connect()
    assert await kinds(handle) == ["submitted", "claimed", "released"]
    await app.close()


def test_an_app_outlives_its_event_loop(url: str) -> None:
    """Two calls of `asyncio.run` on one app: scripts and notebooks do that."""
    app = App(url)

    @app.task
    async def work(n: int) -> int:
        return n * 2

    async def submit() -> str:
        handles = await asyncio.gather(*(work.start(n) for n in range(20)))
        waiting = asyncio.create_task(handles[0].result())
        await asyncio.sleep(0)
        waiting.cancel()
        return handles[3].id

    async def collect(id: str) -> int:
        handles = await asyncio.gather(*(work.start(n) for n in range(20)))
        async with running(app):
            await asyncio.gather(*(handle.result() for handle in handles))
            return await app.handle(id, work).result()

    assert asyncio.run(collect(asyncio.run(submit()))) == 6
    assert asyncio.run(collect(asyncio.run(submit()))) == 6


def test_an_app_can_work_again_in_another_event_loop(url: str) -> None:
    app = App(url)
    ran: list[int] = []

    @app.task
    async def last(n: int) -> None:
        ran.append(n)
        app._halted.set()

    async def serve(n: int) -> None:
        async with asyncio.timeout(30):
            await last.start(n)
            await app.work()

    for number in range(3):
        asyncio.run(serve(number))
    assert ran == [0, 1, 2]


async def test_blocks_that_begin_at_the_same_time_are_told_apart(app: App) -> None:
    async def block() -> str:
        async with app.running():
            await asyncio.sleep(0)
        return "ran"

    answers = await asyncio.gather(block(), block(), return_exceptions=True)
    assert "ran" in answers
    assert sum(isinstance(answer, Refused) for answer in answers) == 1


async def test_starts_at_the_same_time_open_the_store_once(url: str) -> None:
    store = FaultyStore(open_store(url))
    app = App(store=store)

    @app.task
    async def work(n: int) -> int:
        return n

    await asyncio.gather(*(work.start(n) for n in range(50)))
    assert store.calls[Verb.MIGRATE] == 1
    # They also shared calls: those that came while one was under way went out together.
    assert store.calls[Verb.INSERT] < 25
    await app.close()


async def test_a_store_that_cannot_be_opened_can_be_tried_again(url: str) -> None:
    store = FaultyStore(open_store(url), [Fault(Verb.MIGRATE, 1, Kind.BEFORE)])
    app = App(store=store)

    @app.task
    async def work() -> int:
        return 1

    with pytest.raises(StoreUnavailable):
        await work.start()
    # Whatever it had opened before it failed was let go again.
    assert store.calls[Verb.CLOSE] == 1
    async with running(app):
        assert await (await work.start()).result() == 1


async def test_tasks_of_two_namespaces_do_not_meet(url: str) -> None:
    store = open_store(url)
    ours, theirs = App(store=store, namespace="ours"), App(store=store, namespace="theirs")

    @ours.task(name="work")
    async def our_work() -> str:
        return "ours"

    @theirs.task(name="work")
    async def their_work() -> str:
        return "theirs"

    mine, other = await our_work.start(), await their_work.start()
    async with running(theirs):
        assert await other.result() == "theirs"
        assert (await mine.status()).public_state is PublicState.WAITING


@pytest.mark.case("SH-011")
async def test_several_timekeepers_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Two apps on one file, both at work, while executions are made, delayed and completed."""
    url = f"sqlite:///{tmp_path}/shared.db?synchronous=NORMAL"
    apps = [App(url), App(url)]
    tasks = [_echo(app) for app in apps]
    async with running(apps[0]), running(apps[1]):
        handles = [
            await tasks[n % 2].options(delay="20ms" if n % 3 == 0 else None).start(n)
            for n in range(60)
        ]
        assert [await handle.result() for handle in handles] == list(range(60))
        for handle in handles:
            status = await handle.status()
            assert status.public_state is PublicState.COMPLETED
            assert status.total_attempt_count == 1
            assert (await kinds(handle)).count("completed") == 1


def _echo(app: App) -> Task[..., int]:
    @app.task(name="work")
    async def work(n: int) -> int:
        return n

    return work


async def test_a_service_that_dies_ends_the_work_with_its_error(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(self: Worker) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(Worker, "run", dies)
    with pytest.raises(RuntimeError, match="out of luck"):
        await app.work()


def test_each_event_loop_has_a_client_of_its_own(url: str) -> None:
    """A plain task that starts another one with `asyncio.run` takes nothing from its caller."""
    app = App(url)

    @app.task
    async def child(n: int) -> int:
        return n

    @app.task
    def parent(n: int) -> str:
        async def start() -> str:
            return (await child.start(n)).id

        return asyncio.run(start())

    async def main() -> int:
        async with running(app):
            mine = await app.connect()
            id = await (await parent.start(5)).result()
            assert await app.connect() is mine
            return await app.handle(id, child).result()

    assert asyncio.run(main()) == 5
