"""Tasks in processes of their own: what they say and return arrives as from any other task."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest

import flowfabric as ff
from flowfabric import App, ExecutionFailed, FailureReport, Handle
from flowfabric.core.lifecycle import UNREAD
from flowfabric.worker.child import pool
from tests.app.stage import eventually, running
from tests.worker import isolating
from tests.worker.alive import dead, is_alive
from tests.worker.isolating import Basket
from tests.worker.travelling import Money


@pytest.fixture
def app() -> App:
    """That of the module which a child imports; the tests use it one after the other."""
    return isolating.app


async def report_of(handle: Handle[object]) -> tuple[str, FailureReport]:
    with pytest.raises(ExecutionFailed):
        await handle.result()
    (attempt,) = await handle.attempts()
    assert attempt.failure is not None
    return attempt.category, attempt.failure


async def test_it_runs_elsewhere_and_its_process_is_used_again(app: App) -> None:
    async with running(app):
        first = await (await isolating.where.start(1)).result()
        second = await (await isolating.where.start(2)).result()
        third = await (await isolating.where_async.start()).result()
        fourth = await (await isolating.plain.start()).result()
        assert is_alive(first[0])
    assert {first[0], second[0], third, fourth} == {first[0]}
    assert first[0] != os.getpid()
    assert (first[1], second[1]) == (1, 2)
    await dead(first[0])


async def test_attempts_at_the_same_time_have_processes_of_their_own(app: App) -> None:
    async with running(app):
        handles = [await isolating.where.start(n) for n in range(3)]
        found = await asyncio.gather(*(handle.result() for handle in handles))
    assert sorted(n for _, n in found) == [0, 1, 2]
    await dead(*(pid for pid, _ in found))


async def test_its_progress_and_its_lines_are_kept_and_logged(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flowfabric.task")
    async with running(app):
        handle = await isolating.where.start(7)
        await handle.result()
        status = await handle.status()
        (attempt,) = await handle.attempts()
    assert (status.progress_pct, status.progress_message) == (50, "half")
    assert [(line.level, line.message) for line in attempt.log] == [("INFO", "item 7")]
    (record,) = [record for record in caplog.records if record.name == "flowfabric.task"]
    assert (record.getMessage(), record.__dict__["execution"]) == ("item 7", handle.id)
    assert (record.__dict__["item"], record.__dict__["whole"]) == (7, "Basket(items=[])")


async def test_the_progress_of_an_async_task_is_stored(app: App) -> None:
    async with running(app):
        handle = await isolating.where_async.start()
        await handle.result()
        assert (await handle.status()).progress_pct == 30


async def test_models_and_hooked_types_travel_there_and_back(app: App) -> None:
    async with running(app):
        basket = Basket(items=["a", "b"])
        handle = await isolating.total.start(basket, [Money(3, "EUR"), Money(4, "EUR")])
        assert str(await handle.result()) == "14 EUR"


async def test_the_context_of_the_submitter_is_restored_there(app: App) -> None:
    async with running(app):
        before = isolating.tenant.set("acme")
        handle = await isolating.whose.start()
        isolating.tenant.reset(before)
        assert await handle.result() == "acme"


@pytest.mark.parametrize("how", ["error", "task error", "cancelled", "exit"])
async def test_an_exception_is_reported_as_from_any_other_task(app: App, how: str) -> None:
    async with running(app):
        here = await report_of(await isolating.fail_here.start(how))
        there = await report_of(await isolating.fail.start(how))
        other = await report_of(await isolating.fail_async.start(how))
    for category, report in (there, other):
        assert category == here[0]
        told = report.traceback.replace("fail_async", "fail_here").replace(
            "in fail\n", "in fail_here\n"
        )
        lines = [line for line in told.splitlines() if "isolating.py" not in line]
        wanted = [line for line in here[1].traceback.splitlines() if "isolating.py" not in line]
        assert lines == wanted
        assert msgspec.structs.replace(report, traceback="") == msgspec.structs.replace(
            here[1], traceback=""
        )


async def test_a_wrong_result_fails_the_attempt(app: App) -> None:
    async with running(app):
        handle = await isolating.wrong_result.start()
        with pytest.raises(ExecutionFailed, match="expected int, got str") as failed:
            await handle.result()
    assert failed.value.details["category"] == "invalid_result"


async def test_arguments_that_it_cannot_read_are_handed_back(app: App) -> None:
    async with running(app):
        call = cast("ff.Task[..., object]", isolating.total).bind({"items": []}, ["1 EUR"])
        wrong = msgspec.structs.replace(call.request, payload=b'{"basket":{},"prices":[]}')
        (handle,) = await app.start_many([msgspec.structs.replace(call, request=wrong)])

        async def is_back() -> bool:
            return (await handle.status()).public_state == ff.PublicState.DELAYED

        await eventually(is_back)
        row = await app.engine.read.describe(handle.id)
        assert row is not None
        assert UNREAD in repr(row)


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What reads from it waits until the test is over."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR)
    monkeypatch.setenv("TEST_PIPE", str(pipe))
    yield pipe
    os.close(end)


DEATHS = {
    "exit": "exited with status 3",
    "SIGSEGV": "was killed by SIGSEGV",
    "SIGKILL": "was killed by SIGKILL (out of memory?)",
    "daemon": "exited with status 5",
    "deaf connection": "closed its connection to the worker",
}


@pytest.mark.parametrize("how", DEATHS)
async def test_a_process_that_dies_fails_the_attempt_and_says_how(
    app: App, how: str, pipe: Path
) -> None:
    async with running(app):
        category, report = await report_of(await isolating.die.start(how))
        # The next one has a process that works.
        assert await (await isolating.plain.start()).result() != os.getpid()
    assert (category, report.type) == ("process_died", "ProcessDied")
    assert report.message == f"the process of task 'die' {DEATHS[how]}"


async def test_an_attempt_whose_process_died_is_tried_again(app: App) -> None:
    async with running(app):
        handle = await isolating.die_once.start("SIGKILL")
        assert await handle.result() == 1
        outcomes = [attempt.outcome for attempt in await handle.attempts()]
    assert outcomes == ["failed", "success"]


async def test_a_process_that_cannot_be_started_fails_the_attempt(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(self: object) -> None:
        raise OSError("too many processes")

    monkeypatch.setattr("flowfabric.worker.child.pool.ChildProcess.__init__", none)
    async with running(app):
        category, report = await report_of(await isolating.plain.start())
    assert category == "process_died"
    assert "could not be started: too many processes" in report.message


async def test_a_process_that_is_idle_ends(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.0)
    async with running(app):
        first = await (await isolating.plain.start()).result()
        await dead(first)
        second = await (await isolating.plain.start()).result()
    assert first != second
