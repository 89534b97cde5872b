"""Turns of dispatchers: one statement picks flows, leases them, and answers their lines."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from flowfabric.core.flow.model import Unreadable
from flowfabric.core.flow.views import Pending, Turn
from flowfabric.store.postgres.calls import Call, answered
from flowfabric.store.postgres.driver import Connection, Record
from flowfabric.store.postgres.floors import ON_ITS_WAY_MS, TimeFloor
from flowfabric.store.postgres.flow_rows import Reader
from flowfabric.store.postgres.statements import Argument

# A look above the floor goes through so many lines for each flow that it may take.
LINES_FOR_EACH = 10
# A flow that is taken is passed so many times on the way, beside its lines.
_STEPS = 4


class _Look(NamedTuple):
    found: list[Pending | Unreadable]
    peeked: int
    entries: int

    def is_full(self, turn: Turn) -> bool:
        """There may be more, with lines of any age."""
        return len(self.found) >= turn.limit

    def oldest_ms(self, turn: Turn) -> int:
        """What is older than this was passed by: it is done, or nothing could be done about it."""
        taken = [each for each in self.found if isinstance(each, Pending)]
        lines = (line.at_ms for each in taken for line in each.lines)
        timers = (each.flow.due_ms for each in taken if each.flow.due_ms is not None)
        return min([*lines, *timers, turn.now_ms - ON_ITS_WAY_MS])


async def pending(
    connection: Connection, call: Call, turn: Turn, floor: TimeFloor
) -> list[Pending | Unreadable]:
    if turn.only:
        return (await _look(connection, call, turn, "flow_named")).found
    above: list[Pending | Unreadable] = []
    since_ms = floor.of(turn.now_ms)
    if since_ms is not None:
        look = await _look(connection, call, turn, "flow_recent", since_ms=since_ms)
        if look.is_full(turn):
            return look.found
        if look.peeked < turn.limit * LINES_FOR_EACH:
            floor.rise(look.oldest_ms(turn))
            return look.found
        above = look.found
        turn = msgspec.structs.replace(turn, limit=turn.limit - len(above))
    look = await _look(connection, call, turn, "flow_round")
    floor.walked(look.oldest_ms(turn), turn.now_ms, 0 if look.is_full(turn) else look.entries)
    return [*above, *look.found]


async def _look(
    connection: Connection, call: Call, turn: Turn, how: str, *, since_ms: int = 0
) -> _Look:
    arguments: dict[str, Argument] = {
        **call.arguments,
        "limit": turn.limit,
        "until_ms": turn.until_ms,
        "lines": turn.lines,
        "after": turn.after,
        "only": list(dict.fromkeys(turn.only)),
        "since_ms": since_ms,
        "peek": turn.limit * LINES_FOR_EACH,
    }
    records = answered(await call.sql.take(how).fetch(connection, arguments), call)
    found = [_read(record) for record in records if record["id"] is not None]
    lines = sum(len(each.lines) for each in found if isinstance(each, Pending))
    entries = (records[-1]["entries"] or 0) - lines - _STEPS * len(found)
    return _Look(found, records[0]["peeked"], entries)


def _read(record: Record) -> Pending | Unreadable:
    reader = Reader()
    flows = reader.flows(f"[{record['flow']}]")
    if not flows:
        return reader.unreadable[0]
    return Pending(flows[0], reader.lines(record["lines"] or "[]"), reader.unreadable)
