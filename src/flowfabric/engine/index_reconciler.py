"""Looks for what no timer and no sweeper would ever find: executions and flows whose own times are
missing or too late, and copies in a store's indexes that differ from the records.

It goes over everything there is, a bounded piece in each cycle, and the next cycle goes on from
there. A repair is guarded by what was read: whoever was faster knows better.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.model import Flow
from flowfabric.core.flow.views import FlowQuery
from flowfabric.core.ids import FlowId
from flowfabric.core.model import Execution, Malformed
from flowfabric.core.repairs import repair, repair_flow
from flowfabric.core.states import TERMINAL, State
from flowfabric.core.transition import Applied, Changeset, Rejected, Transition
from flowfabric.engine.head_pages import page_of_heads
from flowfabric.engine.intervals import SECONDS
from flowfabric.engine.isolation import isolated, log_failed
from flowfabric.engine.sweeping import Scope, Swept, includes, within
from flowfabric.engine.unsettled import page_of_flows
from flowfabric.errors import FlowFabricError
from flowfabric.loggers import logger_of
from flowfabric.store.clock import FollowingClock
from flowfabric.store.protocol import Store
from flowfabric.store.upkeep import Verifiable

logger = logger_of("flowfabric.index_reconciler")

T = TypeVar("T", Execution, Flow)
R = TypeVar("R")

NAME = "index_reconciler"
PAGE = 500
# What is not over is gone over sooner than the past, of which there is far more.
OPEN_PAGES = 10

OPEN = tuple(state for state in State if state not in TERMINAL)
OVER = tuple(state for state in State if state in TERMINAL)


class _Place(NamedTuple):
    """How far the cycles came, in each kind of record."""

    open: str = ""
    over: str = ""
    flows: str = ""
    copies: str = ""

    @classmethod
    def of(cls, cursor: str) -> _Place:
        try:
            return msgspec.json.decode(cursor, type=cls) if cursor else cls()
        except msgspec.DecodeError:
            return cls()

    @property
    def text(self) -> str:
        return msgspec.json.encode(self).decode() if any(self) else ""


class _Piece(NamedTuple):
    """What a piece of a cycle did, and where the next one goes on."""

    repaired: int = 0
    errors: int = 0
    cursor: str = ""


class _Decided(NamedTuple, Generic[T, R]):
    """What follows from each, and how many nothing could be said about."""

    found: list[tuple[T, R]]
    errors: int


def _decided(items: Sequence[T], decide: Callable[[T], R]) -> _Decided[T, R]:
    found: list[tuple[T, R]] = []
    errors = 0
    for item in items:
        try:
            found.append((item, decide(item)))
        except Exception as error:
            errors += 1
            log_failed(logger, "could not check a record", error, {"record": item.id})
    return _Decided(found, errors)


class IndexReconciler:
    """With a filter, only what is known to fit it, and no store's copies: they are everybody's."""

    name = NAME
    interval_seconds = SECONDS[NAME]

    def __init__(self, store: Store, clock: FollowingClock, *, scope: Scope | None = None) -> None:
        self.filter = scope
        self.cursor = ""
        self._store = store
        self._clock = clock

    async def run_once(self) -> Swept:
        """One cycle. `processed` counts what was repaired."""
        place = _Place.of(self.cursor)
        pieces = [
            await self._guarded(self._open, place.open),
            await self._guarded(self._over, place.over),
            await self._guarded(self._flows, place.flows),
            await self._guarded(self._copies, place.copies),
        ]
        self.cursor = _Place(*(piece.cursor for piece in pieces)).text
        return Swept(sum(piece.repaired for piece in pieces), sum(piece.errors for piece in pieces))

    async def _guarded(self, work: Callable[[str], Awaitable[_Piece]], after: str) -> _Piece:
        """A piece that could not be done is done again in the next cycle."""
        try:
            return await work(after)
        except FlowFabricError as error:
            logger.warning("could not check records", extra={"error": error.code})
            return _Piece(errors=1, cursor=after)

    async def _open(self, after: str) -> _Piece:
        repaired = errors = 0
        for _ in range(OPEN_PAGES):
            done, lost, after = await self._page(OPEN, after)
            repaired, errors = repaired + done, errors + lost
            if not after:
                break
        return _Piece(repaired, errors, after)

    async def _over(self, after: str) -> _Piece:
        return await self._page(OVER, after)

    async def _page(self, states: tuple[State, ...], after: str) -> _Piece:
        found, cursor, lost = await page_of_heads(self._store, states, after, PAGE)
        now_ms = self._clock.now_ms()
        repairs = _decided(found, lambda row: repair(row, now_ms))
        wrong = {row.id: change for row, change in repairs.found if change is not None}
        rows: list[Execution | Malformed] = [row for row in found if row.id in wrong]
        mine = {row.id for row in await within(self.filter, rows, self._store)} if rows else set()
        answers, unwritten = await isolated(
            [change for id, change in wrong.items() if id in mine], self._apply
        )
        for change, error in unwritten:
            about = {"execution": change.id}
            log_failed(logger, "could not repair the timer of an execution", error, about)
        done = [answer.id for answer in answers if isinstance(answer, Applied)]
        for id in done:
            logger.error("repaired the timer of %s", id, extra={"execution": id})
        return _Piece(len(done), lost + repairs.errors + len(unwritten), cursor)

    async def _apply(self, changes: Sequence[Transition]) -> list[Applied | Rejected]:
        return await self._store.apply(changes, self._clock.now_ms())

    async def _flows(self, after: str) -> _Piece:
        query = FlowQuery(after=after, limit=PAGE)
        found, cursor, lost = await page_of_flows(self._store, query)
        now_ms = self._clock.now_ms()
        mine = [flow for flow in found if includes(self.filter, flow)]
        repairs = _decided(mine, lambda flow: repair_flow(flow, now_ms))
        changes = [change for _, change in repairs.found if change is not None]
        answers, unwritten = await isolated(changes, self._commit)
        for change, error in unwritten:
            log_failed(logger, "could not repair the timer of a flow", error, {"flow": change.id})
        done = [id for id, is_done in answers if is_done]
        for id in done:
            logger.error("repaired the timer of flow %s", id, extra={"flow": id})
        return _Piece(len(done), lost + repairs.errors + len(unwritten), cursor)

    async def _commit(self, changes: Sequence[FlowPatch]) -> list[tuple[FlowId, bool]]:
        wrong = [Changeset(flows=[change]) for change in changes]
        answers = await self._store.commit_each(wrong, self._clock.now_ms())
        return [(change.id, done) for change, done in zip(changes, answers, strict=True)]

    async def _copies(self, after: str) -> _Piece:
        is_everything = self.filter is None or self.filter.is_everything
        if not is_everything or not isinstance(self._store, Verifiable):
            return _Piece()
        verified = await self._store.verify(after, PAGE)
        if verified.repaired:
            told = {"repaired": verified.repaired}
            logger.error(
                "repaired %d index entries that differed from their records",
                verified.repaired,
                extra=told,
            )
        return _Piece(verified.repaired, 0, verified.cursor)
