"""What a worker logs by itself, and what of it a handler can use."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from flowfabric.core.ids import public_id
from flowfabric.core.policy import Fixed, Policy, RetryPolicy, encode_policy
from flowfabric.core.states import State
from flowfabric.worker import stall_watch
from tests.worker.floor import PATIENCE_SECONDS, Floor

WORKER_LOG = "flowfabric.worker"
AGAIN = encode_policy(Policy(retry_policy=RetryPolicy(1, backoff=Fixed(60_000))))


def records(caplog: pytest.LogCaptureFixture, level: int) -> list[logging.LogRecord]:
    return [each for each in caplog.records if each.name == WORKER_LOG and each.levelno == level]


def extra(record: logging.LogRecord, name: str) -> object:
    found: object = vars(record)[name]
    return found


async def test_a_worker_says_what_it_serves_when_it_starts(
    floor: Floor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    @floor.task
    async def greet() -> None: ...

    async with floor.working() as worker:
        await floor.until(State.COMPLETED, 0)
    started, stopped = records(caplog, logging.INFO)
    assert started.getMessage().startswith(f"worker {worker.name} started: lanes ")
    assert "1 tasks: greet; 10 slots" in started.getMessage()
    assert stopped.getMessage() == f"worker {worker.name} stopped"


async def test_a_worker_that_stops_says_how_much_it_waits_for(
    floor: Floor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    began, may_end = asyncio.Event(), asyncio.Event()

    @floor.task
    async def greet() -> None:
        began.set()
        await may_end.wait()

    class GoOn(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "is stopping" in record.getMessage():
                may_end.set()

    heard = GoOn()
    logging.getLogger(WORKER_LOG).addHandler(heard)
    await floor.submit("greet")
    async with floor.working(floor.worker(drain_seconds=90.0)) as worker:
        await began.wait()
    logging.getLogger(WORKER_LOG).removeHandler(heard)
    _, stopping, _ = records(caplog, logging.INFO)
    told = f"worker {worker.name} is stopping: it waits up to 1m 30s for 1 running attempts"
    assert stopping.getMessage() == told
    assert extra(stopping, "attempts") == 1


async def test_claims_are_logged_for_debugging(
    floor: Floor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger=WORKER_LOG)

    @floor.task
    async def greet() -> None: ...

    id = await floor.submit("greet")
    async with floor.working():
        await floor.until(State.COMPLETED, 1)
    (claimed,) = records(caplog, logging.DEBUG)
    assert claimed.getMessage() == f"claimed {public_id(id)}: task greet"
    assert extra(claimed, "execution") == public_id(id)


async def test_a_failure_is_logged_with_its_traceback_and_ids(
    floor: Floor, caplog: pytest.LogCaptureFixture
) -> None:
    @floor.task
    async def look_up(name: str) -> int:
        return {"a": 1}[name]

    id = public_id(await floor.submit("look_up", "b"))
    async with floor.working() as worker:
        await floor.until(State.FAILED, 1)
    (failed,) = records(caplog, logging.ERROR)
    assert failed.getMessage() == f"task look_up failed: execution {id}, attempt 0: KeyError: 'b'"
    assert failed.exc_info is not None
    assert isinstance(failed.exc_info[1], KeyError)
    named = {name: extra(failed, name) for name in ("worker", "execution", "task", "attempt")}
    assert named == {"worker": worker.name, "execution": id, "task": "look_up", "attempt": 0}
    assert extra(failed, "category") == "handler_error"


@pytest.mark.parametrize("text", ["a\ud800b", "a\0b"])
async def test_a_failure_with_text_that_no_file_takes_can_be_logged(
    floor: Floor, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    @floor.task
    async def stumble() -> None:
        raise ValueError(text)

    await floor.submit("stumble")
    async with floor.working():
        await floor.until(State.FAILED, 1)
    (failed,) = records(caplog, logging.ERROR)
    shown = logging.Formatter().format(failed)
    shown.encode()
    assert "raise ValueError(text)" in shown


async def test_a_retry_is_logged_with_its_next_try(
    floor: Floor, caplog: pytest.LogCaptureFixture
) -> None:
    @floor.task
    async def ask_the_bank() -> None:
        raise ConnectionError("no answer")

    await floor.submit("ask_the_bank", policy=AGAIN)
    async with floor.working():
        await floor.until(State.DELAYED, 1)
    (again,) = records(caplog, logging.WARNING)
    assert again.getMessage().endswith("attempt 0; retry in 1m: ConnectionError: no answer")
    assert extra(again, "next_attempt") == 1
    assert extra(again, "pause_ms") == 60_000
    assert records(caplog, logging.ERROR) == []


async def test_a_blocked_event_loop_is_named(
    floor: Floor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stall_watch, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(stall_watch, "STALL_SECONDS", 0.001)
    noticed = _Noticed()
    logging.getLogger(WORKER_LOG).addHandler(noticed)

    @floor.task
    async def compute() -> None:
        assert noticed.began.wait(PATIENCE_SECONDS)

    await floor.submit("compute")
    try:
        async with floor.working():
            await floor.until(State.COMPLETED, 1)
            await asyncio.to_thread(noticed.over.wait, PATIENCE_SECONDS)
    finally:
        logging.getLogger(WORKER_LOG).removeHandler(noticed)
    blocked = [each for each in records(caplog, logging.WARNING) if extra(each, "task")]
    assert "task 'compute' in " in blocked[0].getMessage()
    assert "compute() (test_log.py:" in blocked[0].getMessage()
    assert extra(blocked[1], "blocked_ms") is not None


class _Noticed(logging.Handler):
    """Tells a task that blocks that somebody noticed, so that it can go on."""

    def __init__(self) -> None:
        super().__init__()
        self.began = threading.Event()
        self.over = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "has been blocked" in text and "'compute'" in text:
            self.began.set()
        if "was blocked" in text and "'compute'" in text:
            self.over.set()
