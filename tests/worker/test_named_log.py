"""Failures of named members are logged with their names, as far as the store tells these."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import cast

import msgspec
import pytest

from flowfabric.core.flow.member_names import named_id
from flowfabric.core.ids import ExecutionId, FlowId, PartitionCounts
from flowfabric.core.lifecycle import Failure
from flowfabric.core.model import Lease
from flowfabric.core.states import State
from flowfabric.engine.engine import Engine
from flowfabric.engine.outcomes import Failed, Finished
from flowfabric.errors import StoreUnavailable
from flowfabric.testing.build import execution_id, order, submissions
from flowfabric.worker import named_log
from flowfabric.worker.log import WorkerLog
from flowfabric.worker.named_log import NamedLog

FLOW = FlowId("018f0c2e-7b1a-7c3d-8e4f-5a6b7c8d9e0f")
NAMED = named_id(FLOW, "left", PartitionCounts())
Names = dict[str, str]


class Room:
    """What the log asks of an engine: `read.member_names`."""

    def __init__(self, answer: Callable[[], Coroutine[None, None, Names]]) -> None:
        self.read = self
        self.asked = asyncio.Event()
        self._answer = answer

    async def member_names(self, _: Iterable[ExecutionId]) -> Names:
        self.asked.set()
        return await self._answer()


def failed(id: ExecutionId = NAMED, flow: str = FLOW) -> Failed:
    (submitted,) = submissions([order(0)], 0)
    head = msgspec.structs.replace(submitted.execution, id=id, flow=flow)
    return Failed(Lease(head), Failure("broken", "handler_error"))


async def said(
    room: Room, caplog: pytest.LogCaptureFixture, *outcomes: Failed, is_closed: bool = True
) -> list[str]:
    log = NamedLog(cast(Engine, room), WorkerLog("w"))
    for outcome in outcomes:
        log.finished(outcome, Finished(id=outcome.lease.id, state=State.FAILED), 0)
    if is_closed:
        await log.close()
    return [message.partition(":")[0] for message in caplog.messages]


async def known() -> Names:
    await asyncio.sleep(0)
    return {NAMED: "left"}


async def unnamed() -> Names:
    return {}


async def in_trouble() -> Names:
    raise StoreUnavailable("down")


async def silent() -> Names:
    await asyncio.Event().wait()
    return {}


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (known, "task greet (member 'left') failed"),
        (unnamed, "task greet failed"),
        (in_trouble, "task greet failed"),
        (silent, "task greet failed"),
    ],
)
async def test_a_failure_is_logged_before_the_log_is_closed(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[], Coroutine[None, None, Names]],
    line: str,
) -> None:
    if answer is silent:
        monkeypatch.setattr(named_log, "CLOSE_SECONDS", 0.01)
    with caplog.at_level(logging.ERROR, "flowfabric.worker"):
        assert await said(Room(answer), caplog, failed()) == [line]


async def test_a_store_is_asked_only_for_what_may_have_a_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    room = Room(known)
    other = execution_id(0)
    with caplog.at_level(logging.ERROR, "flowfabric.worker"):
        lines = await said(room, caplog, failed(other), failed(flow=""), is_closed=False)
    assert lines == ["task greet failed", "task greet failed"]
    assert not room.asked.is_set()
