"""The log: cursors that name the life of the store, and pages that miss no late commit.

A line's place is (number of its transaction, number of the line). Numbers are given out before
transactions end, so a page stops below the oldest transaction that may still append: the statement
finds it among the transactions in progress, and only those that write to this log count.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from flowfabric.core.model import Event, Feed
from flowfabric.core.states import State
from flowfabric.errors import CursorExpired, InvalidInput
from flowfabric.store.damage import event_of
from flowfabric.store.postgres.driver import Connection, Record
from flowfabric.store.postgres.statements import Argument, Statements

STATES = [state.value for state in State]

_CURSOR = re.compile(r"(.+):([0-9]{1,20})-([0-9]{1,19})", re.ASCII)
_XID_MAX = 2**64 - 1
_SEQ_MAX = 2**63 - 1


class Place(NamedTuple):
    """Where a cursor stands; `life` is empty for the beginning."""

    life: str
    xid: int
    seq: int


def parse_place(text: str) -> Place:
    if not text:
        return Place("", 0, 0)
    found = _CURSOR.fullmatch(text)
    if found is None or int(found[2]) > _XID_MAX or int(found[3]) > _SEQ_MAX:
        raise InvalidInput("is not a cursor", field="after", hint="pass one that a feed gave you")
    return Place(found[1], int(found[2]), int(found[3]))


async def tail(connection: Connection, sql: Statements, feed: Feed) -> list[Event]:
    after = parse_place(feed.after)
    one = feed.execution is not None
    arguments: dict[str, Argument] = {
        "xid": str(after.xid),
        "seq": after.seq,
        "execution": feed.execution,
        "states": [state.value for state in feed.states] or None,
        "known": STATES,
        "limit": 1 if feed.newest else feed.limit,
    }
    statement = sql.named("log_history" if one else "log_feed", "DESC" if feed.newest else "ASC")
    records = await statement.fetch(connection, arguments)
    _require_alive(after, records[0])
    if not one:
        _require_whole(after, records[0]["floor"])
    return [_event(record) for record in records if record["seq"] is not None]


def _require_alive(after: Place, record: Record) -> None:
    """A cursor from another life, or from a time that this one has not reached."""
    if after.life and (after.life != record["incarnation"] or after.xid >= int(record["newest"])):
        raise CursorExpired


def _require_whole(after: Place, floor: str) -> None:
    """Lines after this cursor may be gone."""
    xid, _, seq = floor.partition("-")
    if after.life and (after.xid, after.seq) < (int(xid), int(seq)):
        raise CursorExpired


def _event(record: Record) -> Event:
    xid, seq, id, *cells = record[3:]
    return event_of(f"{record[0]}:{xid}-{seq}", id, cells)
