"""What a worker and its child process say to each other, as frames on a socket.

A frame is its length and a record. The worker sends jobs and answers to progress; the child sends
lines of the log, progress, and one `Ending` for each job.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import msgspec

from flowfabric.core.failures import FailureReport
from flowfabric.core.model import Lease

_LENGTH = struct.Struct(">I")
HEAD_BYTES = _LENGTH.size


class Job(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An attempt to make. `saved`: the context of its submitter; `level`: what is worth logging."""

    task: str
    module: str
    qualname: str
    lease: Lease
    saved: Mapping[str, str] = {}
    level: int


class Heard(msgspec.Struct, frozen=True, tag=True):
    """The answer to progress: the class of the error that it met and its text, if it met one."""

    error: str = ""
    message: str = ""
    field: str | None = None
    hint: str = ""


class Line(msgspec.Struct, frozen=True, tag=True):
    """A line of a log; `extra` as far as it can be sent."""

    logger: str
    level: int
    text: str
    extra: dict[str, str | int | float | bool | None] = {}


class Said(msgspec.Struct, frozen=True, tag=True):
    """Progress."""

    pct: int | None
    message: str | None


class Returned(msgspec.Struct, frozen=True, tag=True):
    """The result, encoded as it is stored."""

    result: bytes


class Raised(msgspec.Struct, frozen=True, tag=True):
    """How the attempt failed."""

    reason: str
    category: str
    fatal: bool
    report: FailureReport | None


class Unread(msgspec.Struct, frozen=True, tag=True):
    """The arguments do not fit the task; nothing of it has run."""

    reason: str


Ending = Returned | Raised | Unread
FromWorker = Job | Heard
FromChild = Line | Said | Ending

_encode = msgspec.msgpack.Encoder().encode
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
_from_child: msgspec.msgpack.Decoder[FromChild] = msgspec.msgpack.Decoder(FromChild)


def framed(message: FromWorker | FromChild) -> bytes:
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


def length_of(head: bytes) -> int:
    (length,) = _LENGTH.unpack(head)
    return int(length)


def read_from_worker(body: bytes) -> FromWorker:
    return _from_worker.decode(body)


def read_from_child(body: bytes) -> FromChild:
    return _from_child.decode(body)
