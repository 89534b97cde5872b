"""What a handle says about an execution at each stage of its life, and how its waiting ends."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from flowfabric import (
    App,
    Context,
    ExecutionCancelled,
    ExecutionEnded,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionNotFound,
    Fixed,
    InvalidInput,
    LaneState,
    PublicState,
    ResultTimeout,
    RetryPolicy,
    StoreUnavailable,
    TaskError,
)
from tests.app.stage import Gate, eventually, kinds, running

UNKNOWN = "{fp:7}:01890000-0000-7000-8000-000000000000"


async def test_a_waiting_execution_names_the_lane_that_will_take_it(app: App) -> None:
    @app.task(lane="llm")
    async def ask(question: str) -> str:
        return question

    handle = await ask.options(tags={"demo.tenant": "acme"}).start("why?")
    status = await handle.status()
    assert (status.id, status.kind, status.lane) == (handle.id, "ask", "llm")
    assert status.public_state is PublicState.WAITING
    assert (status.attempt, status.total_attempt_count, status.lease) == (None, 0, None)
    why = await handle.explain()
    assert why.wakes == "worker"
    assert why.sentence == "no live worker serves lane `llm`; no worker is alive"
    assert await kinds(handle) == ["submitted"]


async def test_a_delayed_execution_names_when_it_will_start(app: App) -> None:
    @app.task
    async def work() -> None: ...

    handle = await work.options(delay="1h").start()
    why = await handle.explain()
    assert (why.public_state, why.wakes) == (PublicState.DELAYED, "timer")
    assert why.until_ms is not None
    assert "delayed until" in why.sentence


async def test_a_paused_lane_is_named(app: App) -> None:
    @app.task
    async def work() -> int:
        return 1

    await app.connect()
    await app.engine.set_lane("default", LaneState.PAUSED)
    handle = await work.start()
    assert (await handle.explain()).wakes == "lane"
    async with running(app):
        await app.engine.set_lane("default", LaneState.ACTIVE)
        assert await handle.result() == 1


async def test_a_running_execution_names_its_worker(app: App) -> None:
    gate = Gate()

    @app.task
    async def work() -> str:
        await gate.wait()
        return "done"

    async with running(app):
        handle = await work.start()
        await gate.reached.wait()
        status, why = await handle.status(), await handle.explain()
        assert status.public_state is PublicState.ACTIVE
        assert status.lease is not None
        assert status.attempt == 0
        assert why.wakes == "lease"
        assert why.sentence.startswith(f"running on {status.lease.worker}, attempt 1")
        assert await kinds(handle) == ["submitted", "claimed"]
        gate.opened.set()
        assert await handle.result() == "done"
        ended = await handle.status()
        assert ended.public_state is PublicState.COMPLETED
        assert ended.lease is None
        assert ended.ended_ms is not None
        assert (await handle.explain()).wakes == "over"
        assert await kinds(handle) == ["submitted", "claimed", "completed"]


async def test_a_failure_is_raised_with_its_category_and_reason(app: App) -> None:
    @app.task
    async def work() -> None:
        raise TaskError("no such city", category="not_found", fatal=True)

    async with running(app):
        handle = await work.start()
        with pytest.raises(ExecutionFailed, match="no such city") as failed:
            await handle.result()
        status = await handle.status()
    assert failed.value.details == {
        "category": "not_found",
        "reason": "no such city",
        "type": "TaskError",
        "message": "no such city",
        "notes": [],
        "members": [],
    }
    assert failed.value.code == "failed"
    assert (status.outcome_category, status.outcome_detail) == ("not_found", "no such city")


async def test_a_cancelled_execution_is_raised_with_its_reason(app: App) -> None:
    @app.task
    async def work() -> None: ...

    handle = await work.start()
    assert await handle.cancel("not needed any more") is PublicState.CANCELLED
    with pytest.raises(ExecutionCancelled, match="not needed any more") as cancelled:
        await handle.result()
    assert cancelled.value.details["category"] == "operator_override"
    assert (await handle.explain()).sentence.endswith("not needed any more")
    assert await handle.cancel() is PublicState.CANCELLED
    assert (await handle.explain()).sentence.endswith("not needed any more")


@pytest.mark.parametrize("kind", ["span", "datetime"])
async def test_a_deadline_ends_it_while_it_waits(app: App, kind: str) -> None:
    @app.task(lane="nobody")
    async def work() -> None: ...

    await app.connect()
    soon = timedelta(milliseconds=500)
    handle = await work.options(
        deadline=soon if kind == "span" else datetime.now(UTC) + soon
    ).start()
    async with running(app, lanes=("other",)):
        with pytest.raises(ExecutionExpired, match="execution_deadline") as expired:
            await handle.result()
    assert isinstance(expired.value, ExecutionEnded)
    assert expired.value.details["category"] == "execution_deadline"


async def test_a_deadline_ends_it_while_it_runs(app: App) -> None:
    gate = Gate()

    @app.task
    async def work() -> str:
        await gate.wait()
        return "too late"

    async with running(app):
        handle = await work.options(deadline="1s").start()
        await gate.reached.wait()
        with pytest.raises(ExecutionExpired):
            await handle.result()
        await gate.cancelled.wait()
        assert await kinds(handle) == ["submitted", "claimed", "expired"]


async def test_an_attempt_that_takes_too_long_expires_the_execution(app: App) -> None:
    gate = Gate()

    @app.task(attempt_timeout="40ms")
    async def work() -> None:
        await gate.wait()

    async with running(app):
        handle = await work.start()
        with pytest.raises(ExecutionExpired, match="attempt_timeout"):
            await handle.result()
        await gate.cancelled.wait()


async def test_an_attempt_that_takes_too_long_can_be_tried_again(app: App) -> None:
    at_once = RetryPolicy(max_retries=1, backoff=Fixed(1))

    @app.task(attempt_timeout="60ms", on_attempt_timeout="retry", retries=at_once)
    async def work(ctx: Context) -> int:
        if ctx.attempt == 0:
            await asyncio.Event().wait()
        return ctx.attempt + 1

    async with running(app):
        assert await (await work.start()).result() == 2


async def test_a_result_timeout_leaves_it_running(app: App) -> None:
    gate = Gate()

    @app.task
    async def work() -> str:
        await gate.wait()
        return "in the end"

    async with running(app):
        handle = await work.start()
        await gate.reached.wait()
        with pytest.raises(ResultTimeout, match=r"has not ended within 0\.0 s") as late:
            await handle.result(timeout=0)
        assert late.value.hint
        assert (await handle.status()).public_state is PublicState.ACTIVE
        assert not gate.cancelled.is_set()
        gate.opened.set()
        assert await handle.result(timeout=30) == "in the end"


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), "soon"])
async def test_a_bad_result_timeout_is_refused(app: App, bad: float) -> None:
    handle = app.handle(UNKNOWN)
    with pytest.raises(InvalidInput) as refused:
        await handle.result(timeout=bad)
    assert refused.value.field == "timeout"
    assert refused.value.hint


async def test_many_wait_for_one(app: App) -> None:
    gate = Gate()

    @app.task
    async def work() -> int:
        await gate.wait()
        return 7

    async with running(app):
        handle = await work.start()
        waiting = [asyncio.create_task(handle.result()) for _ in range(10)]
        await gate.reached.wait()
        gate.opened.set()
        assert await asyncio.gather(*waiting) == [7] * 10


async def test_a_handle_can_be_had_again_from_its_id(app: App) -> None:
    @app.task
    async def pair() -> tuple[int, str]:
        return (1, "x")

    async with running(app):
        started = await pair.start()
        assert await started.result() == (1, "x")
        typed, plain = app.handle(started.id, pair), app.handle(started.id)
        assert await typed.result() == (1, "x")
        assert await plain.result() == [1, "x"]
        assert repr(plain) == f"Handle({started.id!r})"


async def test_an_execution_that_does_not_exist_is_said_so_by_every_verb(app: App) -> None:
    handle = app.handle(UNKNOWN)
    for call in (handle.result, handle.status, handle.cancel, handle.explain):
        with pytest.raises(ExecutionNotFound, match="not found") as missing:
            await call()
        assert missing.value.hint
    assert await handle.events() == []


async def test_long_histories_are_read_whole(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowfabric.client.handle.HISTORY_PAGE", 2)

    @app.task
    async def work() -> None: ...

    async with running(app):
        handle = await work.start()
        await handle.result()
        for number in range(4):
            await app.engine.set_tags(handle.id, {"demo.round": str(number)})
        assert await kinds(handle) == ["submitted", "claimed", "completed", *["tagged"] * 4]


async def test_who_waits_when_the_app_closes_is_told(app: App) -> None:
    @app.task
    async def work() -> None: ...

    handle = await work.start()
    waiting = asyncio.create_task(handle.result())
    await eventually(lambda: _waits(app))
    await app.close()
    with pytest.raises(StoreUnavailable, match="closed before the execution ended"):
        await waiting


async def _waits(app: App) -> bool:
    client = await app.connect()
    return bool(client.results._waiting)


async def test_a_result_that_its_annotation_does_not_allow_is_named(app: App) -> None:
    @app.task
    async def count() -> int:
        return 3

    @app.task
    async def name() -> str:
        return "three"

    async with running(app):
        named = await name.start()
        assert await named.result() == "three"
        # As if another version of the program had promised something else.
        handle = app.handle(named.id, count)
        with pytest.raises(InvalidInput, match="Expected `int`, got `str`") as refused:
            await handle.result()
        assert refused.value.field == "result"
        assert "app.handle(id)" in refused.value.hint
        assert await app.handle(handle.id).result() == "three"
