"""Whatever user code does becomes one outcome with a category and a reason; the worker goes on."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from flowfabric import (
    App,
    Context,
    ExecutionFailed,
    Fixed,
    Handle,
    PublicState,
    RetryPolicy,
    Task,
    TaskError,
)
from flowfabric.engine.diagnosis import Finding
from flowfabric.engine.doctor import Doctor
from tests.app.stage import eventually, kinds, running


def at_once(retries: int, *categories: str) -> RetryPolicy:
    return RetryPolicy(
        max_retries=retries, backoff=Fixed(delay_ms=1), retryable_categories=categories
    )


async def failure_of(task: Task[..., Any]) -> tuple[str, str]:
    """The category and the reason that the execution ended with."""
    handle = await task.start()
    with pytest.raises(ExecutionFailed) as failed:
        await handle.result()
    details = failed.value.details
    return str(details["category"]), str(details["reason"])


async def test_a_failure_is_tried_again_until_it_succeeds(app: App) -> None:
    @app.task(retries=at_once(3))
    async def flaky(ctx: Context) -> int:
        if ctx.retries < 2:
            raise ConnectionError(f"try {ctx.retries}")
        return ctx.attempt

    async with running(app):
        handle = await flaky.start()
        assert await handle.result() == 2
        status = await handle.status()
        assert (status.retry_count, status.total_attempt_count) == (2, 3)
        steps = ["claimed", "retry_scheduled", "promoted"]
        assert await kinds(handle) == ["submitted", *steps, *steps, "claimed", "completed"]


async def test_retries_end(app: App) -> None:
    ran: list[int] = []

    @app.task(retries=at_once(2))
    async def broken(ctx: Context) -> None:
        ran.append(ctx.attempt)
        raise ValueError("never works")

    async with running(app):
        assert await failure_of(broken) == ("handler_error", "never works")
    assert ran == [0, 1, 2]


async def test_retries_wait_longer_and_longer(app: App) -> None:
    @app.task(retries=3)
    async def broken() -> None:
        raise ValueError("not yet")

    async with running(app):
        handle = await broken.start()
        await eventually(lambda: _is_delayed(handle))
        status, why = await handle.status(), await handle.explain()
    assert status.retry_count == 1
    assert (why.wakes, why.until_ms is not None) == ("timer", True)
    assert "retry 1 after: not yet" in why.sentence


async def _is_delayed(handle: Handle[object]) -> bool:
    return (await handle.status()).public_state is PublicState.DELAYED


async def test_only_named_categories_are_tried_again(app: App) -> None:
    ran: list[str] = []

    @app.task(retries=at_once(5, "busy"))
    async def picky(ctx: Context) -> None:
        ran.append(ctx.id)
        raise TaskError("no", category="busy" if ctx.retries == 0 else "broken")

    async with running(app):
        assert await failure_of(picky) == ("broken", "no")
    assert len(ran) == 2


async def test_a_fatal_error_is_not_tried_again(app: App) -> None:
    ran: list[bool] = []

    @app.task(retries=at_once(5))
    async def hopeless() -> None:
        ran.append(True)
        raise TaskError("no such city", category="not_found", fatal=True)

    async with running(app):
        assert await failure_of(hopeless) == ("not_found", "no such city")
    assert ran == [True]


def _raises(error: Callable[[], BaseException]) -> None:
    raise error()


def outer_and_root() -> None:
    try:
        raise KeyError("root")
    except KeyError as root:
        raise RuntimeError("outer") from root


@pytest.mark.case("ER-021")
async def test_the_reason_tells_the_whole_chain_of_causes(app: App) -> None:
    """A missing shared state has no counterpart: a task gets nothing but its arguments."""

    @app.task
    async def chained() -> None:
        outer_and_root()

    @app.task
    def plain() -> None:
        outer_and_root()

    @app.task
    async def panics() -> None:
        raise SystemExit("the roof is on fire")

    async with running(app):
        assert await failure_of(chained) == ("handler_error", "outer: 'root'")
        assert await failure_of(plain) == ("handler_error", "outer: 'root'")
        assert await failure_of(panics) == ("handler_panic", "the roof is on fire")


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_worker_survives_what_is_no_exception(
    app: App, error: type[BaseException], is_async: bool
) -> None:
    if is_async:

        @app.task
        async def panics() -> None:
            raise error
    else:

        @app.task
        def panics() -> None:
            raise error

    @app.task
    async def works() -> int:
        return 1

    async with running(app):
        assert await failure_of(panics) == ("handler_panic", error.__name__)
        assert await (await works.start()).result() == 1


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot even say it")


STRANGE: dict[str, tuple[Callable[[], BaseException], str]] = {
    "the end of an iterator": (StopIteration, "StopIteration"),
    "a cancellation of its own": (asyncio.CancelledError, "CancelledError"),
    "an error that cannot be told": (Mute, "Mute"),
    "a lone surrogate": (lambda: ValueError("a\ud800b"), "a?b"),
    "a NUL": (lambda: ValueError("a\0b"), "a\N{REPLACEMENT CHARACTER}b"),
    "an error without words": (ValueError, "ValueError"),
}


@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.parametrize("is_async", [True, False])
async def test_strange_errors_are_failures_too(app: App, name: str, is_async: bool) -> None:
    make, told = STRANGE[name]
    if is_async:

        @app.task
        async def strange() -> None:
            _raises(make)
    else:

        @app.task
        def strange() -> None:
            _raises(make)

    @app.task
    async def works() -> int:
        return 1

    async with running(app):
        category, reason = await failure_of(strange)
        assert category == "handler_error"
        assert reason.endswith(told)
        assert await (await works.start()).result() == 1


async def test_a_category_can_be_anything_that_has_a_text(app: App) -> None:
    @app.task
    async def odd() -> None:
        error = TaskError("x")
        error.category = 404  # type: ignore[assignment]
        raise error

    async with running(app):
        assert await failure_of(odd) == ("404", "x")


async def test_a_long_reason_is_cut(app: App) -> None:
    @app.task
    async def chatty() -> None:
        raise ValueError("x" * 100_000)

    async with running(app):
        _, reason = await failure_of(chatty)
    assert reason.startswith("xxx")
    assert len(reason) < 1_000


@dataclass
class Guarded:
    value: int

    def __post_init__(self) -> None:
        if Guarded.is_strict:
            raise KeyError("not today")

    is_strict = False


def _circle() -> list[object]:
    circle: list[object] = []
    circle.append(circle)
    return circle


class _Nowhere(dt.tzinfo):
    """A zone that cannot say its offset."""

    def utcoffset(self, _: dt.datetime | None) -> dt.timedelta:
        raise KeyError("no such zone")

    def dst(self, _: dt.datetime | None) -> dt.timedelta | None:
        return None

    def tzname(self, _: dt.datetime | None) -> str | None:
        return None


UNSTORABLE: dict[str, tuple[Callable[[], object], str]] = {
    "no JSON": (object, "object has no JSON form"),
    "itself": (_circle, "recursion"),
    "too large": (lambda: "x" * (1 << 20), "over the limit"),
    "no number": (lambda: [float("nan")], "is nan, which cannot be stored"),
    "a set": (lambda: {1}, "is a set and would arrive as a list"),
    "a lone surrogate": (lambda: "\ud800", "surrogates not allowed"),
    "user code that fails": (
        lambda: dt.datetime(2026, 1, 1, tzinfo=_Nowhere()),
        "no such zone",
    ),
}


@pytest.mark.parametrize("name", UNSTORABLE)
async def test_a_result_that_cannot_be_stored_is_a_failure(app: App, name: str) -> None:
    make, told = UNSTORABLE[name]
    ran: list[bool] = []

    @app.task(retries=at_once(3))
    async def returns() -> object:
        ran.append(True)
        return make()

    async with running(app):
        category, reason = await failure_of(returns)
    assert category == "invalid_result"
    assert reason.startswith("result")
    assert told in reason
    # It was done once; doing it again would not make its result smaller.
    assert ran == [True]


async def test_a_result_of_another_type_than_annotated_is_a_failure(app: App) -> None:
    ran: list[bool] = []

    @app.task(retries=at_once(3))
    async def count() -> int:
        ran.append(True)
        return cast(int, "three")

    async with running(app):
        category, reason = await failure_of(count)
    assert category == "invalid_result"
    assert "task 'count'" in reason
    assert "expected int, got str" in reason
    # Another try would return the same.
    assert ran == [True]


async def test_arguments_that_the_worker_cannot_read_are_handed_back(app: App) -> None:
    @app.task
    async def work(thing: Guarded) -> int:
        return thing.value

    handle = await work.start(Guarded(1))
    Guarded.is_strict = True
    try:
        async with running(app):
            await eventually(lambda: is_handed_back(handle))
            assert "not today" in (await handle.explain()).sentence
            Guarded.is_strict = False
            assert await handle.result() == 1
    finally:
        Guarded.is_strict = False


async def is_handed_back(handle: Handle[int]) -> bool:
    return (await kinds(handle))[-1] == "delayed"


async def test_work_of_another_version_of_the_task_waits_for_a_worker_that_can_read_it(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing ends because a deploy is half done, and no retry is used up."""

    @(old := App(url)).task(name="work")
    async def before(count: int) -> int:
        return count

    @(new := App(url, store=old.engine.store)).task(name="work")
    async def after(count: int, unit: str) -> int:
        return count

    handle = await after.start(3, "kg")
    number = await before.start(4)
    async with running(new):
        await eventually(lambda: is_handed_back(number))
        assert await handle.result() == 3
        why = (await number.explain()).sentence
        assert "could not read its arguments: " in why
        assert "missing required field `unit`" in why
        told = [line for line in caplog.records if line.levelname == "WARNING"]
        assert any("cannot read the arguments" in line.getMessage() for line in told)
        found = (await number.status()).attempt
        assert found == 0
        assert any(each.subject == number.id for each in (await findings(new)))
        new._handlers.clear()
        async with running(old):
            assert await number.result() == 4


async def findings(app: App) -> list[Finding]:
    return (await Doctor(app.engine.store, app.engine.clock).examine()).findings
