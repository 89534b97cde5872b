"""The frame of every sweeper: whose turn it is, where the last cycle stopped, what a cycle did.

A chore does one bounded piece of the work and moves its cursor; the frame asks the store for the
turn before each cycle, so that of any number of engines one sweeps at a time, and leaves cursor
and report for whoever is next. What is swept is guarded anyway: a turn saves work, no more.
"""

from __future__ import annotations

import logging
import time
from typing import Protocol

import msgspec

from flowfabric.core.flow.model import Flow
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution, Malformed, Shift, Want
from flowfabric.engine.conflict import persistently
from flowfabric.engine.loop import AGAIN, Loop
from flowfabric.errors import Corrupt
from flowfabric.loggers import logger_of
from flowfabric.store.clock import FollowingClock
from flowfabric.store.protocol import Store

logger = logger_of("flowfabric.sweeping")

# How long a cycle may be under way before another engine begins one: a crash costs no more.
SHIFT_MS = 10_000


class Scope(msgspec.Struct, frozen=True):
    """Whose work is served; both must fit. What cannot be read fits nothing."""

    namespace: str | None = None
    tag: tuple[str, str] | None = None

    @property
    def is_everything(self) -> bool:
        return self.namespace is None and self.tag is None


class Swept(msgspec.Struct, frozen=True):
    """What one cycle did; `again` when it was full and there may be more."""

    processed: int = 0
    errors: int = 0
    again: bool = False


class Done(Protocol):
    """What a chore answers: at least these two."""

    @property
    def processed(self) -> int: ...
    @property
    def errors(self) -> int: ...


class Chore(Protocol):
    """One kind of repair. `cursor` is where it goes on; empty means from the beginning."""

    name: str
    filter: Scope | None
    cursor: str

    async def run_once(self) -> Done: ...


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What the last cycle leaves behind in the store."""

    cursor: str = ""
    last_ms: int = 0
    duration_ms: int = 0
    interval_ms: int = 0
    processed: int = 0
    errors: int = 0


def report_of(shift: Shift) -> Report:
    """What its last holder left; nothing if that cannot be read."""
    try:
        return msgspec.json.decode(shift.report or b"{}", type=Report)
    except msgspec.DecodeError:
        return Report()


class Sweeper:
    """A chore on a loop, by turns with those of other engines."""

    def __init__(
        self,
        chore: Chore,
        store: Store,
        clock: FollowingClock,
        *,
        owner: str,
        interval_seconds: float,
    ) -> None:
        self.chore = chore
        self.name = chore.name
        self.interval_seconds = interval_seconds
        self.owner = owner
        self.cycles = 0
        self.report = Report()
        self.loop = Loop(chore.name, self._round, every_seconds=interval_seconds)
        self._store = store
        self._clock = clock

    async def run_once(self) -> Done:
        """One cycle, whoever's turn it is."""
        began = time.monotonic()
        done = await self.chore.run_once()
        self.cycles += 1
        self.report = Report(
            cursor=self.chore.cursor,
            last_ms=self._clock.now_ms(),
            duration_ms=round((time.monotonic() - began) * 1000),
            interval_ms=round(self.interval_seconds * 1000),
            processed=done.processed,
            errors=done.errors,
        )
        level = logging.INFO if done.processed or done.errors else logging.DEBUG
        extra = {"duty": self.name, "processed": done.processed, "errors": done.errors}
        logger.log(level, "%s swept", self.name, extra=extra)
        return done

    async def _round(self) -> float:
        now_ms = self._clock.now_ms()
        found = await self._ask(Shift(self.name, self.owner, now_ms + SHIFT_MS))
        if found.owner != self.owner or found.until_ms < now_ms + SHIFT_MS:
            return max((found.until_ms - now_ms) / 1000, 0.001)
        self.chore.cursor = report_of(found).cursor
        done = await self.run_once()
        again = bool(getattr(done, "again", False))
        until_ms = now_ms if again else now_ms + round(self.interval_seconds * 1000)
        report = msgspec.json.encode(self.report).decode()
        await self._ask(Shift(self.name, self.owner, until_ms, report))
        return AGAIN if again else self.interval_seconds

    async def _ask(self, ask: Shift) -> Shift:
        async def once(_: bool) -> list[Shift]:
            return await self._store.shifts([ask], self._clock.now_ms())

        found = await persistently(self._clock, once)
        return next(shift for shift in found if shift.name == self.name)


def includes(scope: Scope | None, flow: Flow) -> bool:
    """Whether a flow is served. It has no tags of its own: where tags matter, none is."""
    return scope is None or (scope.tag is None and scope.namespace in (None, flow.namespace))


async def within(
    scope: Scope | None, rows: list[Execution | Malformed], store: Store
) -> list[Execution | Malformed]:
    """Those of the rows that are served, without a look at the store unless tags matter."""
    if scope is None or scope.is_everything:
        return rows
    heads = [row for row in rows if isinstance(row, Execution)]
    if scope.namespace is not None:
        heads = [head for head in heads if head.namespace == scope.namespace]
    if scope.tag is None or not heads:
        return [*heads]
    key, value = scope.tag
    tags = await _tags(store, [head.id for head in heads])
    return [head for head in heads if tags.get(head.id, {}).get(key) == value]


async def _tags(store: Store, ids: list[ExecutionId]) -> dict[ExecutionId, dict[str, str]]:
    """The tags of those that can be read."""
    try:
        loaded = await store.load(Want(ids=ids, tags=True))
    except Corrupt:
        if len(ids) == 1:
            return {}
        halves = ids[: len(ids) // 2], ids[len(ids) // 2 :]
        first, second = [await _tags(store, half) for half in halves]
        return first | second
    return {each.head.id: each.tags for each in loaded if each is not None}
