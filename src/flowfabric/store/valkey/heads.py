"""Heads and attempts as the texts that the server keeps: MessagePack, by the names of the columns.

A column that has its default is not kept, so a text says only what is special about its record.
What a newer program added is passed over. Bytes are kept as they are: the functions in the server
know only one kind of string.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import (
    Attempt,
    Ended,
    Execution,
    Lease,
    Loaded,
    Malformed,
    Value,
)
from flowfabric.core.states import AttemptKind, AttemptLifecycle, State
from flowfabric.store.cursor import unreadable

UNREADABLE = (KeyError, ValueError, TypeError, msgspec.MsgspecError)

_NOTHING = msgspec.Raw()
_STRINGS = {0xD9: 2, 0xDA: 3, 0xDB: 5}


class _Kept(Execution, frozen=True, gc=False, kw_only=True, array_like=False):
    """What is kept of an execution: its columns, a small payload, the last lines of its history."""

    id: ExecutionId = ExecutionId("")
    creator: str = ""
    policy: str = ""
    payload: msgspec.Raw = _NOTHING
    log: str = ""


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


_decode = msgspec.msgpack.Decoder(_Kept).decode
_decode_attempt = msgspec.msgpack.Decoder(_KeptAttempt).decode
_decode_end = msgspec.msgpack.Decoder(_KeptEnd).decode
_decode_loosely = msgspec.msgpack.Decoder(dict[str, Any]).decode
_convert, _astuple = msgspec.convert, msgspec.structs.astuple

COLUMNS = tuple(field.name for field in msgspec.structs.fields(Execution))
_COUNT = len(COLUMNS)


def usual_of(record: type[msgspec.Struct]) -> dict[str, object]:
    return {field.name: field.default for field in msgspec.structs.fields(record)}


USUAL = usual_of(Execution) | {"creator": "", "policy": ""}
_USUAL_VALUES = tuple(USUAL.values())


# -- writing ------------------------------------------------------------------------------------


def head_values(head: Execution) -> tuple[object, ...]:
    """Everything but the id: equal for executions that are submitted alike."""
    return _astuple(head)[1:]


def template_of(values: tuple[object, ...]) -> dict[str, object]:
    """Every column that is not as usual."""
    named = zip(COLUMNS[1:], values, _USUAL_VALUES[1:], strict=True)
    return {name: value for name, value, usual in named if value is not None and value != usual}


class Changes(NamedTuple):
    """Columns that are set, and those that go back to what is usual."""

    set: dict[str, Value]
    gone: list[str]


def changes_of(patch: Mapping[str, Value], usual: Mapping[str, object] = USUAL) -> Changes:
    set_: dict[str, Value] = {}
    gone: list[str] = []
    for name, value in patch.items():
        if value is None or value == usual[name]:
            gone.append(name)
        else:
            set_[name] = value
    return Changes(set_, gone)


_ATTEMPT_USUAL = usual_of(_KeptAttempt)


def attempt_of(attempt: Attempt) -> dict[str, Value]:
    """All but its result, which goes with each item."""
    columns: dict[str, Value] = {
        "kind": attempt.kind,
        "started_ms": attempt.started_ms,
        "worker": attempt.worker,
        "epoch": attempt.epoch,
        "lifecycle": attempt.lifecycle,
        "ended_ms": attempt.ended_ms,
        "detail": attempt.detail,
        "category": attempt.category,
    }
    return changes_of(columns, _ATTEMPT_USUAL).set


# -- reading ------------------------------------------------------------------------------------


def _head(id: ExecutionId, kept: _Kept) -> Execution:
    return _convert((id, *_astuple(kept)[1:_COUNT]), Execution)


def head_or_malformed(id: ExecutionId, text: Any) -> Execution | Malformed | None:
    """A head, as much as can be said of one that cannot be read, or None for an absent one."""
    if not text:
        return None
    try:
        return _head(id, _decode(text))
    except UNREADABLE as error:
        return _malformed(id, text, f"{type(error).__name__}: {error}")


def _malformed(id: ExecutionId, text: bytes, problem: str) -> Malformed:
    try:
        columns = _decode_loosely(text)
    except UNREADABLE:
        columns = {}
    return Malformed(id, _number(columns.get("rev", 1)), _number(columns.get("failures")), problem)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def head_of(id: ExecutionId, text: Any) -> Execution | None:
    """A head; one that cannot be read is `Corrupt`."""
    head = head_or_malformed(id, text)
    if isinstance(head, Malformed):
        raise unreadable(head.id, head.problem)
    return head


def readable(id: ExecutionId, text: Any) -> Execution | None:
    """A head, or None also for one that cannot be read."""
    head = head_or_malformed(id, text)
    return head if isinstance(head, Execution) else None


def lease_of(id: ExecutionId, text: bytes) -> tuple[Lease | None, bool]:
    """A lease, and whether its payload is kept elsewhere.

    A row that cannot be read keeps its lease until its timer finds it there.
    """
    try:
        kept = _decode(text)
        head = _head(id, kept)
    except UNREADABLE:
        return None, False
    return Lease(head, _string(kept.payload)), kept.payload == _NOTHING


def _string(raw: msgspec.Raw) -> bytes:
    """The bytes of a string, behind what says how many there are."""
    text = bytes(raw)
    return text[_STRINGS.get(text[0], 1) :] if text else b""


def history_of(text: Any) -> list[str]:
    """The last lines of an execution."""
    try:
        return _decode(text).log.splitlines() if text else []
    except UNREADABLE:
        return []


def loaded_of(id: ExecutionId, reply: Any, *, payload: bool) -> Loaded | None:
    text, body, tags, attempts = reply
    head = head_of(id, text)
    if head is None:
        return None
    cells = iter(tags)
    texts = sorted((key.decode(), value.decode()) for key, value in zip(cells, cells, strict=True))
    tried = tuple(_attempt(id, number, kept) for number, kept in attempts)
    inline = _string(_decode(text).payload) if payload and body is None else body
    return Loaded(head, inline or b"", dict(texts), tried)


def _attempt(id: ExecutionId, number: int, text: bytes) -> Attempt:
    try:
        kept = _decode_attempt(text)
    except UNREADABLE as error:
        raise unreadable(id, f"attempt {number}: {error}") from None
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
        result=_result(kept),
    )


def _result(kept: _KeptAttempt) -> bytes | None:
    return None if kept.result == _NOTHING else _string(kept.result)


class End(NamedTuple):
    """How an execution stands, and which attempt has its result."""

    ended: Ended
    attempt: int


def end_of(id: ExecutionId, text: Any) -> End | None:
    if not text:
        return None
    try:
        kept = _decode_end(text)
    except UNREADABLE as error:
        raise unreadable(id, str(error)) from None
    return End(Ended(id, kept.state, kept.outcome_detail, kept.outcome_category), kept.attempt)


def with_result(id: ExecutionId, end: End, text: Any) -> Ended:
    if not text:
        return end.ended
    try:
        kept = _decode_attempt(text)
    except UNREADABLE as error:
        raise unreadable(id, f"attempt {end.attempt}: {error}") from None
    ended = end.ended
    return Ended(id, ended.state, ended.detail, ended.category, _result(kept) or b"")
