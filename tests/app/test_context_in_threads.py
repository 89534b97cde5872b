"""The context of plain functions: what it says takes effect without an `await`."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from flowfabric import App, Context, ExecutionFailed, LeaseLost, StoreUnavailable
from flowfabric.core.lifecycle import submit
from flowfabric.core.model import Lease
from flowfabric.errors import ExecutionNotActive
from flowfabric.testing.build import order
from flowfabric.testing.clock import START_MS
from flowfabric.worker import progress
from flowfabric.worker.progress import LoopProgress
from tests.app.stage import PATIENCE_SECONDS, Gate, eventually, running

LEASE = Lease(submit(order(), START_MS).execution)


class ThreadGate:
    """Where a plain function waits: the test knows when it got there, and lets it go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self.opened.wait(PATIENCE_SECONDS)

    async def is_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, PATIENCE_SECONDS)


async def test_progress_of_a_plain_function_is_stored_when_the_call_returns(app: App) -> None:
    gate = ThreadGate()

    @app.task
    def work(ctx: Context) -> None:
        ctx.progress(40, "reading")
        ctx.progress(message="writing")
        gate.wait()

    async with running(app):
        handle = await work.start()
        await gate.is_reached()
        status = await handle.status()
        gate.opened.set()
        await handle.result()
    assert (status.progress_pct, status.progress_message) == (40, "writing")


async def test_its_lines_are_kept_and_its_logger_knows_it(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flowfabric.task")

    @app.task
    def work(ctx: Context) -> tuple[str, int, int]:
        ctx.log.info("half way")
        return ctx.id, ctx.attempt, ctx.retries

    async with running(app):
        handle = await work.start()
        assert await handle.result() == (handle.id, 0, 0)
        (attempt,) = await handle.attempts()
    assert [line.message for line in attempt.log] == ["half way"]
    (record,) = [record for record in caplog.records if record.name == "flowfabric.task"]
    assert record.__dict__["execution"] == handle.id


async def test_progress_out_of_range_is_refused_in_the_function(app: App) -> None:
    @app.task
    def work(ctx: Context) -> None:
        ctx.progress(101)

    async with running(app):
        handle = await work.start()
        with pytest.raises(ExecutionFailed, match="101 is out of range") as failed:
            await handle.result()
    assert "ctx.progress(101)" in failed.value.traceback


@pytest.mark.parametrize(("way", "wanted"), [("cancel", ExecutionNotActive), ("revoke", LeaseLost)])
async def test_progress_of_lost_work_ends_the_function(
    app: App, way: str, wanted: type[Exception]
) -> None:
    gate, ended = ThreadGate(), threading.Event()
    errors: list[Exception] = []

    @app.task
    def work(ctx: Context) -> None:
        if gate.reached.is_set():
            # What was taken away is begun again, and must not end before the first attempt.
            assert ended.wait(PATIENCE_SECONDS)
            return
        gate.wait()
        try:
            ctx.progress(50)
        except Exception as error:
            errors.append(error)
            raise
        finally:
            ended.set()

    async with running(app):
        handle = await work.start()
        await gate.is_reached()
        await (handle.cancel() if way == "cancel" else app.engine.revoke(handle.id))
        gate.opened.set()
        assert await asyncio.to_thread(ended.wait, PATIENCE_SECONDS)
    assert isinstance(errors[0], wanted)


async def test_a_plain_function_that_runs_a_loop_of_its_own_awaits_it_there(app: App) -> None:
    gate = ThreadGate()

    async def inside(ctx: Context) -> None:
        await ctx.progress(30)
        await asyncio.gather(ctx.progress(message="inside"))

    @app.task
    def work(ctx: Context) -> None:
        asyncio.run(inside(ctx))
        gate.wait()

    async with running(app):
        handle = await work.start()
        await gate.is_reached()
        status = await handle.status()
        gate.opened.set()
        await handle.result()
    assert (status.progress_pct, status.progress_message) == (30, "inside")


async def test_a_helper_may_await_what_was_done_already(app: App) -> None:
    @app.task
    def work(ctx: Context) -> None:
        done = ctx.progress(30)
        asyncio.run(_awaited(done))

    async def _awaited(done: object) -> None:
        assert isinstance(done, progress.Done)
        await done

    async with running(app):
        handle = await work.start()
        await handle.result()
        assert (await handle.status()).progress_pct == 30


def in_thread(call: LoopProgress, lease: Lease) -> tuple[threading.Thread, list[Exception]]:
    """The call in a thread of its own, and the error that it ended with."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            call(lease, 50, None)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, errors


async def leased(app: App) -> tuple[Lease, Gate]:
    """A lease of an execution that waits at the gate."""
    gate = Gate()

    @app.task
    async def work() -> None:
        await gate.wait()

    handle = await work.start()
    await eventually(lambda: _reached(gate))
    return await app.engine.adopt(handle.id), gate


async def _reached(gate: Gate) -> bool:
    return gate.reached.is_set()


async def test_a_loop_that_is_blocked_lets_a_thread_wait_for_a_bounded_time_only(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "WAIT_SECONDS", 0.01)
    async with running(app):
        lease, gate = await leased(app)
        thread, errors = in_thread(LoopProgress(app.engine.progress), lease)
        # Blocks the loop on purpose, until the thread has given up.
        thread.join(PATIENCE_SECONDS)
        gate.opened.set()
    assert [type(error) for error in errors] == [StoreUnavailable]
    assert "not stored within" in str(errors[0])


def test_a_thread_that_outlives_the_loop_of_its_worker_is_told() -> None:
    made: list[LoopProgress] = []

    async def make() -> None:
        async def send(lease: Lease, pct: int | None, message: str | None) -> None:
            await asyncio.Event().wait()

        made.append(LoopProgress(send))

    asyncio.run(make())
    with pytest.raises(LeaseLost, match="has stopped"):
        made[0](LEASE, 50, None)


def test_a_loop_that_ends_meanwhile_ends_the_wait() -> None:
    async def make() -> tuple[threading.Thread, list[Exception]]:
        sending = asyncio.Event()

        async def send(lease: Lease, pct: int | None, message: str | None) -> None:
            sending.set()
            await asyncio.Event().wait()

        found = in_thread(LoopProgress(send), LEASE)
        await sending.wait()
        return found

    thread, errors = asyncio.run(make())
    thread.join(PATIENCE_SECONDS)
    assert [type(error) for error in errors] == [LeaseLost]
