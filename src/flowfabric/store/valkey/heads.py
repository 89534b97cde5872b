"""Executions and attempts as the texts that the server keeps.

The text of an execution begins with its flow and what else the functions in the server look at;
behind it are all other columns that were ever written, as one map of MessagePack in which the last
of a name counts. What a newer program added is passed over. Bytes are kept as they are: the
functions know only one kind of string.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import (
    Attempt,
    Ended,
    Execution,
    Lease,
    Malformed,
)
from flowfabric.core.states import AttemptKind, AttemptLifecycle, State
from flowfabric.store.damage import ended, in_column, lease_or_unusable, problem_of, unreadable

UNREADABLE = (LookupError, ValueError, TypeError, msgspec.MsgspecError)

_NOTHING = msgspec.Raw()
_NIL = msgspec.Raw(b"\xc0")
_LOG = b"\xa3log"
_STRINGS = {0xD9: 2, 0xDA: 3, 0xDB: 5}
_SHORT = [bytes((0xA0 | size,)) for size in range(32)]


class _Kept(Execution, frozen=True, gc=False, kw_only=True, array_like=False):
    """What is kept of an execution: its columns and a small payload."""

    id: ExecutionId = ExecutionId("")
    creator: str = ""
    policy: str = ""
    payload: msgspec.Raw = _NOTHING


class _KeptAttempt(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    kind: AttemptKind = AttemptKind.INITIAL
    lifecycle: AttemptLifecycle
    worker: str = ""
    epoch: int = 0
    started_ms: int | None = None
    ended_ms: int | None = None
    detail: str = ""
    category: str = ""
    result: msgspec.Raw = _NOTHING


class _KeptEnd(msgspec.Struct, frozen=True, gc=False):
    """As much of a head as somebody who waits for its end has to know."""

    state: State
    outcome_detail: str = ""
    outcome_category: str = ""
    attempt: int = -1


class _Loose(msgspec.Struct, frozen=True):
    """What can be said of a head that cannot be read."""

    rev: object = 1
    failures: object = 0


_decode = msgspec.msgpack.Decoder(_Kept).decode
_decode_attempt = msgspec.msgpack.Decoder(_KeptAttempt).decode
_decode_end = msgspec.msgpack.Decoder(_KeptEnd).decode
_decode_loosely = msgspec.msgpack.Decoder(_Loose).decode
_decode_cells = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_text = msgspec.msgpack.Decoder(str).decode
_encode = msgspec.msgpack.Encoder().encode
_convert, _astuple = msgspec.convert, msgspec.structs.astuple

COLUMNS = tuple(field.name for field in msgspec.structs.fields(Execution))
_COUNT = len(COLUMNS)
_FLOW = COLUMNS.index("flow")


def usual_of(record: type[msgspec.Struct]) -> dict[str, object]:
    return {field.name: field.default for field in msgspec.structs.fields(record)}


USUAL = usual_of(Execution) | {"creator": "", "policy": ""}
_ALIKE = tuple((name, USUAL[name]) for name in COLUMNS if name not in ("id", "flow"))


# -- writing ------------------------------------------------------------------------------------


def head_values(head: Execution) -> tuple[object, ...]:
    """Everything but the id and the flow: equal for executions that are submitted alike."""
    values = _astuple(head)
    return values[1:_FLOW] + values[_FLOW + 1 :]


def template_of(values: tuple[object, ...]) -> dict[str, object]:
    """Every column that is not as usual."""
    named = zip(_ALIKE, values, strict=True)
    return {name: value for (name, usual), value in named if value is not None and value != usual}


def string_of(text: bytes) -> msgspec.Raw:
    """Bytes as the one kind of string that the functions know."""
    size = len(text)
    if size < len(_SHORT):
        return msgspec.Raw(_SHORT[size] + text)
    for mark, width in ((0xD9, 1), (0xDA, 2), (0xDB, 4)):
        if size < 1 << 8 * width:
            return msgspec.Raw(bytes((mark,)) + size.to_bytes(width, "big") + text)
    raise OverflowError


def columns_text(columns: Mapping[str, object]) -> bytes:
    """Columns as they are added to those that are kept: a map without its beginning."""
    return _encode(columns)[1 if len(columns) < 16 else 3 :]


def attempt_text(attempt: Attempt) -> bytes:
    """All but its result, which goes behind it."""
    columns: dict[str, object] = {
        "kind": attempt.kind,
        "started_ms": attempt.started_ms,
        "worker": attempt.worker,
        "epoch": attempt.epoch,
        "lifecycle": attempt.lifecycle,
        "ended_ms": attempt.ended_ms,
        "detail": attempt.detail,
        "category": attempt.category,
        "result": None,
    }
    return _encode(columns)[:-1]


# -- reading ------------------------------------------------------------------------------------


def _columns(text: bytes) -> bytes:
    """What is behind the flow and the front, which both begin with how long they are."""
    front = text[0] + 1
    return text[front + (text[front] << 8 | text[front + 1]) :]


def _flow(text: bytes) -> str:
    return text[1 : text[0] + 1].decode()


def _head(id: ExecutionId, text: bytes, kept: _Kept) -> Execution:
    values = _astuple(kept)
    return _convert((id, *values[1:_FLOW], _flow(text), *values[_FLOW + 1 : _COUNT]), Execution)


def head_or_malformed(id: ExecutionId, text: bytes | None) -> Execution | Malformed | None:
    """A head, as much as can be said of one that cannot be read, or None for an absent one."""
    if text is None:
        return None
    try:
        return _head(id, text, _decode(_columns(text)))
    except UNREADABLE as error:
        return _malformed(id, text, problem_of(error, COLUMNS))


def _malformed(id: ExecutionId, text: bytes, problem: str) -> Malformed:
    try:
        loose = _decode_loosely(_columns(text))
    except UNREADABLE:
        loose = _Loose()
    return Malformed(id, _number(loose.rev), _number(loose.failures), problem)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def head_of(id: ExecutionId, text: bytes | None) -> Execution | None:
    """A head; one that cannot be read is `Corrupt`."""
    head = head_or_malformed(id, text)
    if isinstance(head, Malformed):
        raise unreadable(head.id, head.problem)
    return head


def readable(id: ExecutionId, text: bytes | None) -> Execution | None:
    """A head, or None also for one that cannot be read."""
    head = head_or_malformed(id, text)
    return head if isinstance(head, Execution) else None


def lease_of(id: ExecutionId, text: bytes) -> tuple[Lease | None, bool]:
    """A lease, and whether its payload is kept elsewhere.

    A row that cannot be read keeps its lease until its timer finds it there.
    """
    try:
        kept = _decode(_columns(text))
        head = _head(id, text, kept)
    except UNREADABLE:
        return None, False
    if kept.payload == _NOTHING:
        return Lease(head), True
    return lease_or_unusable(head, _string(kept.payload)), False


def _string(raw: msgspec.Raw) -> bytes | None:
    """The bytes of a string, behind what says how many there are; None for anything else."""
    text = bytes(raw)
    if not text or not (text[0] in _STRINGS or 0xA0 <= text[0] <= 0xBF):
        return None
    return text[_STRINGS.get(text[0], 1) :]


def history_of(text: bytes | None) -> list[str]:
    """The last lines of an execution: its columns once more, each time that they were written."""
    if text is None:
        return []
    try:
        columns = _columns(text)
        count = int.from_bytes(columns[1:3], "big")
        cells = _decode_cells(b"\xdc" + (count * 2).to_bytes(2, "big") + columns[3:])
        named = zip(cells[::2], cells[1::2], strict=True)
        return [_decode_text(value) for name, value in named if bytes(name) == _LOG]
    except UNREADABLE:
        return []


def payload_of(text: bytes) -> bytes | None:
    """A payload that is among the columns, if it is."""
    return _string(_decode(_columns(text)).payload)


def attempt_of(id: ExecutionId, number: int, text: bytes) -> Attempt:
    try:
        kept = _decode_attempt(text)
        result = _result(kept)
    except UNREADABLE as error:
        raise unreadable(id, _of_attempt(number, error)) from None
    return Attempt(
        execution=id,
        attempt=number,
        kind=kept.kind,
        lifecycle=kept.lifecycle,
        worker=kept.worker,
        epoch=kept.epoch,
        started_ms=kept.started_ms,
        ended_ms=kept.ended_ms,
        detail=kept.detail,
        category=kept.category,
        result=result,
    )


def _of_attempt(number: int, error: Exception) -> str:
    return f"attempt {number}: {problem_of(error)}"


def _result(kept: _KeptAttempt) -> bytes | None:
    if kept.result in (_NOTHING, _NIL):
        return None
    result = _string(kept.result)
    if result is None:
        raise ValueError(in_column("result", "Expected `bytes`"))
    return result


class End(NamedTuple):
    """How an execution stands, and which attempt has its result."""

    id: ExecutionId
    state: State
    told: tuple[str, str]
    attempt: int


def end_of(id: ExecutionId, text: bytes | None) -> End | None:
    if text is None:
        return None
    try:
        kept = _decode_end(_columns(text))
    except UNREADABLE as error:
        raise unreadable(id, problem_of(error)) from None
    return End(id, kept.state, (kept.outcome_detail, kept.outcome_category), kept.attempt)


def with_result(end: End, text: bytes | None) -> Ended:
    try:
        result = None if text is None else _result(_decode_attempt(text))
    except UNREADABLE as error:
        raise unreadable(end.id, _of_attempt(end.attempt, error)) from None
    return ended(end.id, end.state, end.told, result)
