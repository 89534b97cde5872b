"""A hint on its way to other processes, short: what would be long means that they must look."""

from __future__ import annotations

import msgspec

from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.store.hints import Hint

IDS_MAX = 64


class _Notice(msgspec.Struct, frozen=True, array_like=True):
    origin: str
    ready: bool
    due_ms: int | None
    ended: list[str]
    fenced: list[str]
    foreign: bool
    flows: list[str] = []
    turn_ms: int | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Notice).decode


def joined(first: Hint, second: Hint) -> Hint:
    """One hint that says what both say."""
    due = [each.due_ms for each in (first, second) if each.due_ms is not None]
    turns = [each.turn_ms for each in (first, second) if each.turn_ms is not None]
    return Hint(
        ready=first.ready or second.ready,
        due_ms=min(due, default=None),
        ended=(first.ended + second.ended)[: IDS_MAX + 1],
        fenced=(first.fenced + second.fenced)[: IDS_MAX + 1],
        foreign=first.foreign or second.foreign,
        flows=(first.flows + second.flows)[: IDS_MAX + 1],
        turn_ms=min(turns, default=None),
    )


def encode_notice(origin: str, hint: Hint) -> bytes:
    is_long = max(map(len, (hint.ended, hint.fenced, hint.flows))) > IDS_MAX
    return _encode(
        _Notice(
            origin=origin,
            ready=hint.ready,
            due_ms=hint.due_ms,
            ended=[] if is_long else list(hint.ended),
            fenced=[] if is_long else list(hint.fenced),
            foreign=is_long or hint.foreign,
            flows=[] if is_long else list(hint.flows),
            turn_ms=hint.turn_ms,
        )
    )


def decode_notice(payload: bytes) -> tuple[str, Hint]:
    """Where it comes from and what it says; of one that cannot be read, that something happened."""
    try:
        notice = _decode(payload)
    except msgspec.DecodeError:
        return "", Hint(foreign=True)
    return notice.origin, Hint(
        ready=notice.ready,
        due_ms=notice.due_ms,
        ended=tuple(map(ExecutionId, notice.ended)),
        fenced=tuple(map(ExecutionId, notice.fenced)),
        foreign=notice.foreign,
        flows=tuple(map(FlowId, notice.flows)),
        turn_ms=notice.turn_ms,
    )
