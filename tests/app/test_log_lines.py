"""What a task logs with `ctx.log` is kept with its attempt."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest

import flowfabric as ff
from flowfabric.core.attempt_record import AttemptLine
from flowfabric.store import Store
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb
from flowfabric.worker import attempt_log, line_keeper
from tests.app.stage import eventually


@pytest.fixture
def _silent() -> Iterator[None]:
    """A program that logs nothing of what tasks say."""
    tasks = logging.getLogger("flowfabric.task")
    tasks.setLevel(logging.CRITICAL)
    yield
    tasks.setLevel(logging.NOTSET)


def texts(lines: tuple[AttemptLine, ...]) -> list[tuple[str, str]]:
    return [(line.level, line.message) for line in lines]


async def _has_lines(handle: ff.Handle[object]) -> bool:
    return any(record.log for record in await handle.attempts())


async def _says(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return text in caplog.text


@pytest.mark.usefixtures("_silent")
async def test_lines_are_kept_whatever_the_logging_of_the_program_says(store: Store) -> None:
    app = ff.App(store=store)

    @app.task
    async def charge(ctx: ff.Context) -> None:
        ctx.log.debug("not this")
        ctx.log.info("charging %s", 7)
        ctx.log.warning("slowly")

    async with app.running():
        handle = await charge.start()
        await handle.result()
        (record,) = await handle.attempts()
    assert texts(record.log) == [("INFO", "charging 7"), ("WARNING", "slowly")]


async def test_records_of_the_program_have_the_ids_and_the_place(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="flowfabric.task")
    app = ff.App(store=store)

    @app.task
    async def charge(ctx: ff.Context) -> None:
        ctx.log.info("charging", extra={"amount": 3, "execution": "forged"})

    async with app.running():
        handle = await charge.start()
        await handle.result()
    (record,) = [each for each in caplog.records if each.name == "flowfabric.task"]
    assert record.funcName == "charge"
    found = {name: vars(record)[name] for name in ("execution", "task", "attempt", "amount")}
    assert found == {"execution": handle.id, "task": "charge", "attempt": 0, "amount": 3}


async def test_a_logged_exception_keeps_its_traceback(store: Store) -> None:
    app = ff.App(store=store)

    @app.task
    def charge(ctx: ff.Context) -> None:
        try:
            raise ConnectionError("no answer")
        except ConnectionError:
            ctx.log.exception("the bank is away")

    async with app.running():
        handle = await charge.start()
        await handle.result()
        (record,) = await handle.attempts()
    assert record.log[0].message.startswith("the bank is away\nTraceback")
    assert "ConnectionError: no answer" in record.log[0].message


async def test_lines_of_a_running_attempt_can_be_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_keeper, "STORE_SECONDS", 0.0)
    app = ff.App(store=store)
    go_on = asyncio.Event()

    @app.task
    async def charge(ctx: ff.Context) -> None:
        ctx.log.info("first")
        await go_on.wait()
        ctx.log.info("second")

    async with app.running():
        handle = await charge.start()
        await eventually(lambda: _has_lines(handle))
        (record,) = await handle.attempts()
        assert (record.outcome, texts(record.log)) == ("running", [("INFO", "first")])
        go_on.set()
        await handle.result()
        (record,) = await handle.attempts()
    assert texts(record.log) == [("INFO", "first"), ("INFO", "second")]


async def test_lines_that_could_not_be_stored_go_with_the_outcome(
    faulty: FaultyStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(line_keeper, "STORE_SECONDS", 0.0)
    app = ff.App(store=faulty)
    tried = asyncio.Event()
    faulty.plan.append(Fault(Verb.APPEND, 1, Kind.BEFORE, times=1_000_000))

    @app.task
    async def charge(ctx: ff.Context) -> None:
        ctx.log.info("first")
        await tried.wait()

    async with app.running():
        handle = await charge.start()
        await eventually(lambda: _says(caplog, "could not store"))
        tried.set()
        await handle.result()
        (record,) = await handle.attempts()
    assert texts(record.log) == [("INFO", "first")]


async def test_a_task_that_logs_without_end_is_bounded(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_log, "LINES_MAX", 10)
    app = ff.App(store=store)

    @app.task
    def charge(ctx: ff.Context) -> None:
        def shout() -> None:
            for n in range(50):
                ctx.log.info("line %d", n)

        threads = [threading.Thread(target=shout) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    async with app.running():
        handle = await charge.start()
        await handle.result()
        (record,) = await handle.attempts()
    assert len(record.log) == 11
    assert record.log[-1].message == "log limit of this attempt reached; further lines are not kept"


@pytest.mark.usefixtures("_silent")
async def test_a_line_with_wrong_arguments_is_kept_as_it_is(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    app = ff.App(store=store)

    @app.task
    async def charge(ctx: ff.Context) -> None:
        ctx.log.info("%d of %d", *[1])

    async with app.running():
        handle = await charge.start()
        await handle.result()
        (record,) = await handle.attempts()
    assert record.log[0].message == "'%d of %d' (1,)"
