"""A hint on its way to other processes, short: what would be long means that they must look."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import ANY_ROUTE
from flowfabric.store.hints import Hint

IDS_MAX = 64
ROUTES_MAX = 8
ROUTES_LENGTH_MAX = 1_000


class _Notice(msgspec.Struct, frozen=True, array_like=True):
    origin: str
    ready: list[str]
    due_ms: int | None
    ended: list[str]
    fenced: list[str]
    foreign: bool
    flows: list[str] = []
    turn_ms: int | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Notice).decode


def few_routes(ready: Iterable[str]) -> tuple[str, ...]:
    """Each once; of many it is only said that there are some."""
    routes = tuple(dict.fromkeys(ready))
    is_long = len(routes) > ROUTES_MAX or sum(map(len, routes)) > ROUTES_LENGTH_MAX
    return (ANY_ROUTE,) if is_long or ANY_ROUTE in routes else routes


def joined(first: Hint, second: Hint) -> Hint:
    """One hint that says what both say."""
    due = [each.due_ms for each in (first, second) if each.due_ms is not None]
    turns = [each.turn_ms for each in (first, second) if each.turn_ms is not None]
    return Hint(
        ready=few_routes((*first.ready, *second.ready)),
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
            ready=list(few_routes(hint.ready)),
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
        ready=tuple(notice.ready),
        due_ms=notice.due_ms,
        ended=tuple(map(ExecutionId, notice.ended)),
        fenced=tuple(map(ExecutionId, notice.fenced)),
        foreign=notice.foreign,
        flows=tuple(map(FlowId, notice.flows)),
        turn_ms=notice.turn_ms,
    )
