"""What a task can know about its own attempt, and say while it runs."""

from __future__ import annotations

import logging

import pytest

from flowfabric import App, Context, ExecutionFailed, Fixed, LeaseLost, RetryPolicy
from flowfabric.worker.attempt_log import AttemptLog
from tests.app.stage import Gate, running

AT_ONCE = RetryPolicy(max_retries=3, backoff=Fixed(delay_ms=1))


async def test_a_context_knows_its_execution_and_attempt(app: App) -> None:
    facts: list[tuple[str, int, int, int | None]] = []

    @app.task(retries=AT_ONCE)
    async def work(ctx: Context, n: int) -> int:
        facts.append((ctx.id, ctx.attempt, ctx.retries, ctx.deadline_ms))
        if ctx.attempt == 0:
            raise ValueError("again")
        return n

    async with running(app):
        handle = await work.options(deadline="1h").start(5)
        assert await handle.result() == 5
        deadline = (await handle.status()).deadline_ms
    assert deadline is not None
    assert facts == [(handle.id, 0, 0, deadline), (handle.id, 1, 1, deadline)]


async def test_a_plain_function_gets_a_context_too(app: App) -> None:
    @app.task
    def work(ctx: Context) -> str:
        return ctx.id

    async with running(app):
        handle = await work.start()
        assert await handle.result() == handle.id


async def test_a_context_is_no_argument(app: App) -> None:
    @app.task
    async def work(ctx: Context, /, n: int) -> int:
        return n

    assert work.handler.names == ("n",)
    async with running(app):
        assert await (await work.start(3)).result() == 3


async def test_progress_is_seen_from_outside(app: App) -> None:
    gate = Gate()

    @app.task
    async def work(ctx: Context) -> None:
        await ctx.progress(40, "reading")
        await ctx.progress(message="writing")
        await gate.wait()

    async with running(app):
        handle = await work.start()
        await gate.reached.wait()
        status = await handle.status()
        gate.opened.set()
        await handle.result()
    assert (status.progress_pct, status.progress_message) == (40, "writing")


@pytest.mark.parametrize(
    ("pct", "told"), [(101, "101 is out of range"), (-1, "-1 is out of range"), (33.3, "33.3")]
)
async def test_progress_out_of_range_is_refused_and_nothing_is_written(
    app: App, pct: int, told: str
) -> None:
    @app.task
    async def work(ctx: Context) -> None:
        await ctx.progress(pct)

    async with running(app):
        handle = await work.start()
        with pytest.raises(ExecutionFailed, match=f"pct: .*{told}"):
            await handle.result()
        status = await handle.status()
    assert status.progress_pct is None


async def test_progress_of_lost_work_is_refused(app: App) -> None:
    gate = Gate()

    @app.task
    async def work() -> None:
        await gate.wait()

    async with running(app):
        handle = await work.start()
        await gate.reached.wait()
        lease = await app.engine.adopt(handle.id)
        kept = AttemptLog(lease, app.engine.clock.now_ms, lambda: None)
        context = Context(lease, app.engine.progress, kept)
        await context.progress(50)
        await app.engine.revoke(handle.id)
        with pytest.raises(LeaseLost):
            await context.progress(60)
        gate.opened.set()
        await handle.result()
        assert (await handle.status()).progress_pct == 50


async def test_its_logger_says_who_speaks(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task
    async def work(ctx: Context) -> None:
        ctx.log.warning("half way")

    async with running(app):
        handle = await work.start()
        await handle.result()
    record = next(record for record in caplog.records if record.name == "flowfabric.task")
    assert record.levelno == logging.WARNING
    assert (record.getMessage(), record.__dict__["execution"]) == ("half way", handle.id)
    assert (record.__dict__["task"], record.__dict__["attempt"]) == ("work", 0)
