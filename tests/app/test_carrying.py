"""Context of the submitter in the attempt, by a hook of the app."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NoReturn

import pytest

import flowfabric as ff
from flowfabric.engine.slots import slot_here
from flowfabric.store import Store
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb

trace: ContextVar[str] = ContextVar("trace", default="")


class TraceCarrier:
    """What a user would write for one variable."""

    def save(self) -> Mapping[str, str]:
        return {"trace": trace.get()} if trace.get() else {}

    @contextmanager
    def restore(self, saved: Mapping[str, str]) -> Iterator[None]:
        before = trace.set(saved["trace"])
        yield
        trace.reset(before)


class BrokenCarrier(TraceCarrier):
    def restore(self, saved: Mapping[str, str]) -> NoReturn:
        raise ValueError("no such tracer")


class GreedyCarrier(TraceCarrier):
    """One whose context manager swallows exceptions."""

    @contextmanager
    def restore(self, saved: Mapping[str, str]) -> Iterator[None]:
        try:
            yield
        except BaseException:
            return


def app_with(
    store: Store, carrier: ff.Carrier
) -> tuple[ff.App, ff.Task[..., str], ff.Task[..., str]]:
    app = ff.App(store=store, carrier=carrier)

    @app.task
    async def seen() -> str:
        return trace.get()

    @app.task
    def seen_in_thread() -> str:
        assert slot_here() is None
        return trace.get()

    return app, seen, seen_in_thread


async def test_an_attempt_has_the_context_of_its_submitter(store: Store) -> None:
    app, seen, seen_in_thread = app_with(store, TraceCarrier())
    async with app.running():
        trace.set("abc")
        first, second = await seen.start(), await seen_in_thread.start()
        trace.set("")
        third = await seen.start()
        assert [await each.result() for each in (first, second, third)] == ["abc", "abc", ""]
        assert (await first.status()).tags == {"context.trace": "abc"}


async def test_members_of_a_flow_have_it_too(store: Store) -> None:
    app, seen, _ = app_with(store, TraceCarrier())
    async with app.running():
        trace.set("abc")
        graph = app.graph("one")
        node = graph.add(seen)
        run = await graph.submit()
        assert await run.result(node) == "abc"


async def test_a_key_means_the_same_in_another_context(store: Store) -> None:
    app, seen, _ = app_with(store, TraceCarrier())

    async def submitted(context: str) -> tuple[str, str]:
        trace.set(context)
        graph = app.graph("one")
        graph.add(seen)
        return (await seen.options(idempotency_key="k").start()).id, (
            await graph.submit(idempotency_key="f")
        ).id

    await app.connect()
    assert await submitted("abc") == await submitted("def")
    await app.close()


async def test_a_carrier_that_fails_is_logged_and_the_work_is_done(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    app, seen, _ = app_with(store, BrokenCarrier())
    async with app.running():
        trace.set("abc")
        assert await (await seen.start()).result() == ""
    assert "could not restore the context" in caplog.text


async def test_a_carrier_cannot_swallow_a_cancellation(store: Store) -> None:
    app = ff.App(store=store, carrier=GreedyCarrier())
    began = asyncio.Event()

    @app.task
    async def hang() -> None:
        began.set()
        await asyncio.Event().wait()

    async with app.running():
        trace.set("abc")
        handle = await hang.start()
        await began.wait()
        await handle.cancel()
        with pytest.raises(ff.ExecutionCancelled):
            await handle.result()


async def test_a_context_that_cannot_be_read_costs_nothing_but_itself(
    faulty: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    app, seen, _ = app_with(faulty, TraceCarrier())
    async with app.running():
        trace.set("abc")
        faulty.plan.append(Fault(Verb.LOAD, faulty.calls[Verb.LOAD] + 1, Kind.BEFORE))
        assert await (await seen.start()).result() == ""
    assert "could not read" in caplog.text


async def test_a_name_that_cannot_be_a_tag_is_refused(store: Store) -> None:
    class Shouting(TraceCarrier):
        def save(self) -> Mapping[str, str]:
            return {"TRACE": "abc"}

    app, seen, _ = app_with(store, Shouting())
    await app.connect()
    with pytest.raises(ff.InvalidInput, match=r"context\.TRACE"):
        await seen.start()
    await app.close()
