"""The child's side of the socket: messages in both directions, from any thread of the task."""

from __future__ import annotations

import socket
import threading

from flowfabric import errors
from flowfabric.errors import FlowFabricError, LeaseLost
from flowfabric.worker.child.messages import (
    HEAD_BYTES,
    Ending,
    FromWorker,
    Heard,
    Job,
    Line,
    Said,
    framed,
    length_of,
    read_from_worker,
)


class Channel:
    """One job at a time; what threads say after its end is dropped or refused."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        # Held while an answer is awaited: only one thread reads.
        self._lock = threading.Lock()
        self._is_over = True

    def next_job(self) -> Job | None:
        """The next one; None when the worker wants no more."""
        found = self._receive()
        with self._lock:
            self._is_over = False
        return found if isinstance(found, Job) else None

    def end(self, ending: Ending) -> None:
        with self._lock:
            self._is_over = True
            self._connection.sendall(framed(ending))

    def line(self, line: Line) -> None:
        with self._lock:
            if not self._is_over:
                self._connection.sendall(framed(line))

    def progress(self, pct: int | None, message: str | None) -> None:
        """Until the worker has stored it; raises what the worker met."""
        with self._lock:
            if self._is_over:
                raise LeaseLost("the attempt has ended")
            self._connection.sendall(framed(Said(pct, message)))
            heard = self._receive()
        if not isinstance(heard, Heard):
            raise LeaseLost("the worker of this attempt has ended")
        if heard.error:
            raise _error_of(heard)

    def _receive(self) -> FromWorker | None:
        head = self._bytes(HEAD_BYTES)
        return read_from_worker(self._bytes(length_of(head))) if head else None

    def _bytes(self, count: int) -> bytes:
        """So many, or none when the worker has closed its end."""
        found = bytearray()
        while len(found) < count:
            more = self._connection.recv(count - len(found))
            if not more:
                return b""
            found += more
        return bytes(found)


def heard(error: FlowFabricError | None) -> Heard:
    """For the child: what became of its progress."""
    if error is None:
        return Heard()
    return Heard(type(error).__name__, error.message, error.field, error.hint)


def _error_of(heard: Heard) -> FlowFabricError:
    kind: object = getattr(errors, heard.error, None)
    if not isinstance(kind, type) or not issubclass(kind, FlowFabricError):
        kind = FlowFabricError
    return kind(heard.message, field=heard.field, hint=heard.hint)
