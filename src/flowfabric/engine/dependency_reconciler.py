"""The safety net under dispatch: ends of members that nobody has acted on for a while, lines that
are gone though their work is not done, and groups that do not say what their edges say.

What it finds goes the dispatcher's usual road. A flow that somebody works on is left to him.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from flowfabric.core.flow.model import Flow, Line, LineKind, Unreadable
from flowfabric.core.flow.views import Pending, Sight, Turn, name_of
from flowfabric.engine.dispatcher import Dispatcher
from flowfabric.engine.flow_audit import audit
from flowfabric.engine.intervals import SECONDS
from flowfabric.engine.isolation import STORE_TROUBLE, log_failed
from flowfabric.engine.sweeping import Scope, includes
from flowfabric.engine.unsettled import unsettled_flows
from flowfabric.errors import FlowFabricError
from flowfabric.loggers import logger_of
from flowfabric.store.clock import FollowingClock
from flowfabric.store.protocol import Store

logger = logger_of("flowfabric.dependency_reconciler")

NAME = "dependency_reconciler"
STALE_MS = 1_000
FLOWS = 50


class Swept(msgspec.Struct, frozen=True):
    """Lines that were old enough, those of them that are done now, and flows that failed."""

    scanned: int = 0
    processed: int = 0
    errors: int = 0


class _Place(NamedTuple):
    """How far a cycle came: among flows with lines, among flows that are not settled, and among the
    members of one that is too large for one look."""

    lines: str = ""
    done: str = ""
    large: str = ""
    member: str = ""

    @classmethod
    def of(cls, cursor: str) -> _Place:
        parts = cursor.split(" ")
        return cls(*parts) if len(parts) == len(cls._fields) else cls()

    @property
    def text(self) -> str:
        return " ".join(self) if any(self) else ""


class DependencyReconciler:
    """With a filter, only flows that are known to fit it: others are somebody else's."""

    name = NAME
    interval_seconds = SECONDS[NAME]

    def __init__(
        self,
        store: Store,
        clock: FollowingClock,
        dispatcher: Dispatcher,
        *,
        scope: Scope | None = None,
        stale_ms: int = STALE_MS,
    ) -> None:
        self.filter = scope
        self.cursor = ""
        self._store = store
        self._clock = clock
        self._dispatcher = dispatcher
        self._stale_ms = stale_ms

    async def run_once(self) -> Swept:
        """One cycle over flows with open lines, and one over members of flows that are not
        settled, each from where the last one ended."""
        place = _Place.of(self.cursor)
        old, lines = await self._old_lines(place.lines)
        wrong, reached = await self._audited(place)
        self.cursor = reached._replace(lines=lines).text
        return Swept(old.scanned, old.processed + wrong.processed, old.errors + wrong.errors)

    async def _audited(self, place: _Place) -> tuple[Swept, _Place]:
        try:
            found, rest, errors = await unsettled_flows(self._store, place.done, FLOWS)
            mine = [flow for flow in found if includes(self.filter, flow)]
            is_inside = bool(mine) and mine[0].id == place.large
            after = place.member if is_inside else ""
            repairs, large, member, lost = await self._audit(mine, after)
        except FlowFabricError as error:
            logger.warning("could not read flows", extra={"error": error.code})
            return Swept(errors=1), _Place()
        swept = Swept(processed=repairs, errors=errors + lost)
        if large is None:
            return swept, _Place(done=rest)
        before = [flow.id for flow in found if flow.id < large.id]
        return swept, _Place(
            done=before[-1] if before else place.done, large=large.id, member=member
        )

    async def _audit(self, flows: Sequence[Flow], after: str) -> tuple[int, Flow | None, str, int]:
        """As `audit`, and how many could not be: one of them keeps no other back."""
        try:
            return *await audit(self._store, self._clock, flows, after), 0
        except STORE_TROUBLE:
            raise
        except Exception as error:
            if len(flows) == 1:
                log_failed(logger, "could not examine a flow", error, {"flow": flows[0].id})
                return 0, None, "", 1
        middle = len(flows) // 2
        repairs, large, member, lost = await self._audit(flows[:middle], after)
        if large is not None:
            return repairs, large, member, lost
        more, large, member, also_lost = await self._audit(flows[middle:], "")
        return repairs + more, large, member, lost + also_lost

    async def _old_lines(self, after: str) -> tuple[Swept, str]:
        now_ms = self._clock.now_ms()
        # A lease that is over at once: to look at a flow is not to take it from anybody.
        turn = Turn(limit=FLOWS, now_ms=now_ms, until_ms=0, after=after)
        try:
            found = await self._store.pending(turn)
        except FlowFabricError as error:
            logger.warning("could not read outbox entries", extra={"error": error.code})
            return Swept(errors=1), ""
        scanned = processed = errors = 0
        for each in found:
            if isinstance(each, Unreadable):
                logger.warning("a flow cannot be read", extra={"flow": each.name})
                errors += 1
                continue
            stale = self._stale(each, now_ms)
            if not stale:
                continue
            done = await self._guarded(each.flow, stale)
            scanned += len(stale)
            processed += done or 0
            errors += done is None
        return Swept(scanned, processed, errors), name_of(found[-1]) if found else ""

    def _stale(self, pending: Pending, now_ms: int) -> list[Line]:
        if not includes(self.filter, pending.flow):
            return []
        return [
            line
            for line in pending.lines
            if line.kind is LineKind.ENDED and line.at_ms + self._stale_ms <= now_ms
        ]

    async def _guarded(self, flow: Flow, stale: Sequence[Line]) -> int | None:
        """How many of these lines are done now; None when the flow made trouble."""
        try:
            await self._dispatcher.dispatch(stale[0])
            view = (await self._store.graph([Sight(flow=flow.id, lines=True)]))[0]
        except Exception as error:
            about = {"flow": flow.id}
            log_failed(logger, "could not dispatch old outbox entries of a flow", error, about)
            return None
        left = {line.id for line in view.lines}
        return sum(line.id not in left for line in stale)
