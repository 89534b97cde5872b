"""The socket between a worker and its child process, seen from the child."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest

from flowfabric.core.lifecycle import submit
from flowfabric.core.model import Lease
from flowfabric.errors import FlowFabricError, InvalidInput, LeaseLost, StaleLease
from flowfabric.testing.build import order
from flowfabric.testing.clock import START_MS
from flowfabric.worker.child.channel import Channel, heard
from flowfabric.worker.child.messages import (
    HEAD_BYTES,
    FromChild,
    FromWorker,
    Heard,
    Job,
    Line,
    Returned,
    Said,
    framed,
    length_of,
    read_from_child,
)
from flowfabric.worker.child.speaking import ChannelHandler, ChildContext

LEASE = Lease(submit(order(), START_MS).execution, b"{}")
JOB = Job(task="work", module="shop", qualname="work", lease=LEASE, level=logging.INFO)


class Worker:
    """The other end."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def say(self, message: FromWorker) -> None:
        self._connection.sendall(framed(message))

    def hears(self) -> FromChild:
        head = self._connection.recv(HEAD_BYTES)
        return read_from_child(self._connection.recv(length_of(head)))

    def hears_nothing(self) -> bool:
        self._connection.setblocking(False)
        try:
            return not self._connection.recv(1)
        except BlockingIOError:
            return True

    def leave(self) -> None:
        self._connection.close()


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Worker]]:
    child, worker = socket.socketpair()
    with child, worker:
        yield Channel(child), Worker(worker)


def test_a_job_arrives_and_its_end_is_told(ends: tuple[Channel, Worker]) -> None:
    channel, worker = ends
    worker.say(JOB)
    assert channel.next_job() == JOB
    channel.end(Returned(b"1"))
    assert worker.hears() == Returned(b"1")
    worker.leave()
    assert channel.next_job() is None


def test_what_is_said_after_the_end_is_dropped_or_refused(ends: tuple[Channel, Worker]) -> None:
    channel, worker = ends
    worker.say(JOB)
    channel.next_job()
    context = ChildContext(LEASE, channel, logging.INFO)
    context.log.info("in time")
    channel.end(Returned(b"1"))
    context.log.info("too late")
    with pytest.raises(LeaseLost, match="the attempt has ended"):
        context.progress(50)
    assert [worker.hears(), worker.hears()] == [
        Line("flowfabric.task", logging.INFO, "in time"),
        Returned(b"1"),
    ]
    assert worker.hears_nothing()


ERRORS: list[FlowFabricError] = [
    StaleLease("another has it"),
    InvalidInput("101 is out of range", field="pct", hint="0 to 100"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
def test_progress_raises_what_the_worker_met(
    ends: tuple[Channel, Worker], error: FlowFabricError
) -> None:
    channel, worker = ends
    worker.say(JOB)
    channel.next_job()
    worker.say(heard(error))
    with pytest.raises(type(error)) as raised:
        channel.progress(1, None)
    assert str(raised.value) == str(error)
    assert worker.hears() == Said(1, None)
    worker.say(heard(None))
    channel.progress(2, "two")


def test_an_error_that_this_version_does_not_know_is_an_error(
    ends: tuple[Channel, Worker],
) -> None:
    channel, worker = ends
    worker.say(JOB)
    channel.next_job()
    worker.say(Heard("Unheard", "of"))
    with pytest.raises(FlowFabricError, match="of"):
        channel.progress(1, None)


def test_progress_without_a_worker_is_refused(ends: tuple[Channel, Worker]) -> None:
    channel, worker = ends
    worker.say(JOB)
    channel.next_job()
    worker._connection.shutdown(socket.SHUT_WR)
    with pytest.raises(LeaseLost, match="has ended"):
        channel.progress(1, None)


def test_lines_below_the_level_of_the_worker_are_not_sent(ends: tuple[Channel, Worker]) -> None:
    channel, worker = ends
    worker.say(JOB)
    channel.next_job()
    log = ChildContext(LEASE, channel, logging.INFO).log
    log.debug("never")
    assert (log.isEnabledFor(logging.DEBUG), log.isEnabledFor(logging.INFO)) == (False, True)
    with pytest.raises(KeyError, match="overwrite 'name'"):
        log.info("clash", extra={"name": "x"})  # noqa: G101
    log.info("%s of %s", 1, 2, extra={"part": 1, "box": [1]})
    assert worker.hears() == Line(
        "flowfabric.task", logging.INFO, "1 of 2", {"part": 1, "box": "[1]"}
    )


def test_an_exception_is_sent_with_its_traceback(ends: tuple[Channel, Worker]) -> None:
    channel, worker = ends
    worker.say(JOB)
    channel.next_job()
    try:
        raise KeyError("lost")
    except KeyError:
        ChildContext(LEASE, channel, logging.INFO).log.exception("broken")
    line = worker.hears()
    assert isinstance(line, Line)
    assert line.text.startswith("broken\nTraceback")
    assert "KeyError: 'lost'" in line.text


def test_what_the_library_logs_in_the_child_goes_to_the_worker(
    ends: tuple[Channel, Worker],
) -> None:
    channel, worker = ends
    worker.say(JOB)
    channel.next_job()
    record = logging.LogRecord("flowfabric.worker", logging.ERROR, "", 1, "no %s", ("x",), None)
    ChannelHandler(channel).handle(record)
    assert worker.hears() == Line("flowfabric.worker", logging.ERROR, "no x")
