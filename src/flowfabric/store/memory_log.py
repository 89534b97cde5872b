"""The log of the memory store: lines by their number, counted on for ever."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Event, Execution, Feed
from flowfabric.core.transition import LogLine
from flowfabric.store.cursor import cursor_text, parse_cursor, refuse_gap
from flowfabric.store.upkeep import Size


class LogBook:
    """`last` is how many lines there ever were; up to the floor some are gone."""

    def __init__(self) -> None:
        self._incarnation = secrets.token_hex(8)
        self._lines: dict[int, Event] = {}
        self.last = 0
        self._floor = 0

    def append(self, row: Execution, now_ms: int, line: LogLine) -> None:
        self.last += 1
        self._lines[self.last] = Event(
            cursor=cursor_text(self._incarnation, self.last),
            execution=row.id,
            at_ms=now_ms,
            kind=line.kind,
            state=row.state,
            attempt=row.attempt,
            epoch=row.epoch,
            detail=dict(line.detail),
        )

    def tail(self, feed: Feed) -> list[Event]:
        after = parse_cursor(feed.after, self._incarnation, last=self.last)
        if feed.after and feed.execution is None:
            refuse_gap(after, self._floor)
        places = range(after + 1, self.last + 1)
        lines: Iterable[Event] = [self._lines[place] for place in places if place in self._lines]
        if feed.execution is not None:
            lines = [line for line in lines if line.execution == feed.execution]
        elif feed.states:
            lines = [line for line in lines if line.state in feed.states]
        return list(lines)[-1:] if feed.newest else list(lines)[: feed.limit]

    def remove(self, ids: Collection[ExecutionId]) -> None:
        for number in [seq for seq, line in self._lines.items() if line.execution in ids]:
            del self._lines[number]
            self._floor = max(self._floor, number)

    def sizes(self) -> list[Size]:
        return [Size("log", len(self._lines), 0)]
