"""A failure is seen by the caller like a local exception, wherever it happened."""

from __future__ import annotations

import traceback
from typing import cast

import pytest

import flowfabric as ff
from flowfabric.core.policy import Fixed, RetryPolicy
from flowfabric.store import Store
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb

AT_ONCE = RetryPolicy(max_retries=1, backoff=Fixed(0))


def price_of(name: str) -> int:
    return {"a": 1}[name]


async def failure(handle: ff.Handle[object]) -> ff.ExecutionFailed:
    with pytest.raises(ff.ExecutionFailed) as error:
        await handle.result()
    return error.value


async def test_a_failure_shows_type_message_and_the_traceback_of_the_worker(store: Store) -> None:
    app = ff.App(store=store)

    @app.task
    async def charge(name: str) -> int:
        return price_of(name)

    async with app.running():
        handle = await charge.start("b")
        error = await failure(handle)
    assert str(error) == f"execution {handle.id} failed: KeyError: 'b'"
    assert 'return {"a": 1}[name]' in error.traceback
    assert error.details["type"] == "KeyError"
    assert error.details["category"] == "handler_error"
    shown = "".join(traceback.format_exception(error))
    assert "in price_of" in shown
    assert "direct cause" in shown
    assert "flowfabric/worker" not in error.traceback


async def test_notes_and_members_of_a_group_are_kept(store: Store) -> None:
    app = ff.App(store=store)

    @app.task
    def charge() -> None:
        error = ExceptionGroup("two", [ValueError("a"), OSError("b")])
        error.add_note("both banks are closed")
        raise error

    async with app.running():
        error = await failure(await charge.start())
    assert error.details["notes"] == ["both banks are closed"]
    assert error.details["members"] == ["ValueError: a", "OSError: b"]
    assert "both banks are closed" in error.traceback


async def test_every_attempt_keeps_its_own_failure(store: Store) -> None:
    app = ff.App(store=store)

    @app.task(retries=AT_ONCE)
    async def charge(ctx: ff.Context) -> None:
        raise ConnectionError(f"try {ctx.attempt}")

    async with app.running():
        handle = await charge.start()
        error = await failure(handle)
        records = await handle.attempts()
    assert "try 1" in str(error)
    assert [each.outcome for each in records] == ["failed", "failed"]
    kept = [each.failure.headline for each in records if each.failure]
    assert kept == ["ConnectionError: try 0", "ConnectionError: try 1"]


async def test_a_member_of_a_flow_keeps_its_failure(store: Store) -> None:
    app = ff.App(store=store)

    @app.task
    async def one() -> int:
        return 1

    @app.task
    async def charge(amount: int) -> int:
        return price_of(str(amount))

    async with app.running():
        graph = app.graph("shop")
        node = graph.add(charge, graph.add(one))
        run = await graph.submit()
        with pytest.raises(ff.ExecutionFailed) as error:
            await run.result(node)
    assert "price_of" in error.value.traceback


async def test_a_replay_keeps_what_was_before_it(store: Store) -> None:
    app = ff.App(store=store)
    is_open: list[bool] = []

    @app.task
    async def charge() -> str:
        if not is_open:
            raise ConnectionError("closed")
        return "paid"

    async with app.running():
        handle = await charge.start()
        await failure(handle)
        is_open.append(True)
        await app.engine.replay(handle.id, "the bank opened")
        assert await handle.result() == "paid"
        records = await handle.attempts()
    assert [each.outcome for each in records] == ["failed", "success"]
    assert records[0].failure is not None
    assert records[1].failure is None


async def test_a_failure_that_no_exception_made_says_its_reason(store: Store) -> None:
    app = ff.App(store=store)

    @app.task
    async def charge() -> int:
        return cast(int, "no number")

    async with app.running():
        error = await failure(await charge.start())
    assert "invalid_result" in str(error.details["category"])
    assert error.traceback == ""


async def test_an_exception_that_cannot_be_read_leaves_the_failure(
    faulty: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    app = ff.App(store=faulty)

    @app.task
    async def charge() -> int:
        return price_of("b")

    faulty.plan.append(Fault(Verb.ENTRIES, 1, Kind.BEFORE, times=100))
    async with app.running():
        error = await failure(await charge.start())
    assert str(error).endswith("failed: 'b'")
    assert "could not read" in caplog.text
