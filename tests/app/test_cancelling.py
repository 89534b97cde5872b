"""A cancel reaches the user's code, wherever the execution is, and its late result is refused."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from flowfabric import App, ExecutionCancelled, PublicState
from tests.app.stage import Gate, eventually, kinds, running


async def test_a_cancel_is_delivered_into_the_coroutine(app: App) -> None:
    gate = Gate()

    @app.task
    async def work() -> None:
        await gate.wait()

    async with running(app):
        handle = await work.start()
        await gate.reached.wait()
        assert await handle.cancel("enough") is PublicState.CANCELLED
        await gate.cancelled.wait()
        with pytest.raises(ExecutionCancelled, match="enough"):
            await handle.result()
        assert await kinds(handle) == ["submitted", "claimed", "cancelled"]


async def test_a_cancelled_task_may_clean_up_undisturbed(app: App) -> None:
    reached, clean, steps = asyncio.Event(), asyncio.Event(), []

    @app.task
    async def work() -> None:
        try:
            reached.set()
            await asyncio.Event().wait()
        finally:
            for step in range(50):
                await asyncio.sleep(0)
                steps.append(step)
            clean.set()

    async with running(app):
        handle = await work.start()
        await reached.wait()
        await handle.cancel()
        await clean.wait()
    assert steps == list(range(50))


async def test_a_late_result_is_refused(app: App, caplog: pytest.LogCaptureFixture) -> None:
    reached, refused = asyncio.Event(), asyncio.Event()

    @app.task
    async def stubborn() -> str:
        reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            refused.set()
        return "too late"

    async with running(app):
        handle = await stubborn.start()
        await reached.wait()
        await handle.cancel("enough")
        await refused.wait()
        with caplog.at_level(logging.WARNING, "flowfabric.worker"):
            await eventually(lambda: _said(caplog, "was refused"))
        with pytest.raises(ExecutionCancelled):
            await handle.result()
        assert await app.engine.read.result(handle.id) is None
        assert await kinds(handle) == ["submitted", "claimed", "cancelled"]


async def _said(caplog: pytest.LogCaptureFixture, words: str) -> bool:
    return words in caplog.text


async def test_a_plain_function_is_ignored_from_then_on(app: App) -> None:
    reached, go_on = threading.Event(), threading.Event()

    @app.task
    def blocking() -> str:
        reached.set()
        go_on.wait(10)
        return "too late"

    async with running(app):
        handle = await blocking.start()
        await asyncio.to_thread(reached.wait, 10)
        await handle.cancel("enough")
        with pytest.raises(ExecutionCancelled):
            await handle.result()
        go_on.set()
        assert (await handle.status()).public_state is PublicState.CANCELLED


async def test_a_cancelled_slot_is_free_again(url: str) -> None:
    app = App(url, concurrency=1)
    gate = Gate()

    @app.task
    async def block() -> None:
        await gate.wait()

    @app.task
    async def next_one() -> int:
        return 2

    async with running(app):
        handle = await block.start()
        await gate.reached.wait()
        behind = await next_one.start()
        await handle.cancel()
        assert await behind.result() == 2


async def test_a_cancelled_delay_never_runs(app: App) -> None:
    ran: list[bool] = []

    @app.task
    async def work() -> None:
        ran.append(True)

    handle = await work.options(delay="30ms").start()
    await handle.cancel()
    other = await work.options(delay="60ms").start()
    async with running(app):
        await other.result()
        assert (await handle.status()).public_state is PublicState.CANCELLED
    assert ran == [True]
