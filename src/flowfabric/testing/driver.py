"""Driver: an engine on one store, with a memory, that judges every call it makes.

Whatever is called, the store is looked at before and after: a refused call must have changed
nothing, a granted one only what it may. Executions, leases and observations are named by number,
so that several drivers on several stores can be led through the same history.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

from flowfabric.core.documents import Document
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution, Lease
from flowfabric.core.states import LaneState, Reason, State
from flowfabric.engine.engine import Engine
from flowfabric.engine.timekeeper import Sweep, Timekeeper
from flowfabric.errors import (
    FlowFabricError,
    InvalidInput,
    LeaseLost,
    NotFound,
    Refused,
)
from flowfabric.store.protocol import Store
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.history import broken_change
from flowfabric.testing.invariants import broken, instants
from flowfabric.testing.picture import Picture, look

T = TypeVar("T")

NAMESPACES = ("default", "other")
ANY = 6
BATCH = 3
ROUNDS_MAX = 200
# Everything else that a verb raises is a fault, not an answer.
ANSWERS = (Refused, LeaseLost, NotFound, InvalidInput)


class Broken(AssertionError):
    """An invariant does not hold after a call."""


class Driver:
    """One store, one engine per namespace, and everything that was ever handed out."""

    def __init__(self, store: Store, clock: VirtualClock) -> None:
        self.store = store
        self.clock = clock
        self.engines = [Engine(store, clock=clock, namespace=name) for name in NAMESPACES]
        self.timekeeper = Timekeeper(store, self.engine.clock, batch=BATCH)
        self.leases: list[Lease] = []
        self.observed: list[Execution] = []
        self.tokens: list[tuple[str, int]] = []
        self.handed: dict[tuple[ExecutionId, int], str] = {}
        self.keys: dict[tuple[str, str], tuple[ExecutionId, int]] = {}
        self.lanes_since_ms = 0
        self.documents: list[Document] = []
        self._picture: Picture | None = None

    @property
    def engine(self) -> Engine:
        return self.engines[0]

    @property
    def picture(self) -> Picture:
        if self._picture is None:
            raise RuntimeError("open the driver first")
        return self._picture

    async def open(self) -> None:
        for engine in self.engines:
            await engine.open()
        self._picture = await look(self.store, self.clock.now_ms())

    async def do(self, call: Callable[[], Awaitable[T]], *, writes: int = 1) -> T | FlowFabricError:
        """Call, and judge what became of the store; a refusal is an answer."""
        before = self.picture
        told: T | FlowFabricError
        try:
            told = await call()
        except ANSWERS as refusal:
            told = refusal
        after = self._picture = await look(self.store, self.clock.now_ms())
        allowed = 0 if isinstance(told, FlowFabricError) else writes
        sentences = [*broken(after), *broken_change(before, after, writes=allowed)]
        if sentences:
            raise Broken("\n".join([f"after an answer of {told!r}:", *sentences]))
        return told

    # -- time ---------------------------------------------------------------------------------

    def moments(self) -> list[int]:
        """Every instant to come at which something happens by itself, soonest first."""
        found = {instant for row in self.picture.rows for instant in instants(row)}
        found |= {row.due_ms for row in self.picture.rows if row.due_ms is not None}
        found |= {until_ms for _, until_ms in self.keys.values()}
        found |= {each.due_ms for each in self.documents if each.due_ms is not None}
        return sorted(instant for instant in found if instant > self.clock.now_ms())

    async def pass_time(self) -> None:
        """After the clock was moved: time alone changes nothing."""
        await self.do(self.store.now, writes=0)

    async def sweep(self) -> Sweep:
        """One round of the timekeeper."""
        before = self.picture.overdue
        swept = await self.do(self.timekeeper.run_once)
        if isinstance(swept, FlowFabricError) or swept.errors:
            raise Broken(f"timers failed: {swept!r}")
        served = set(before[:BATCH])
        for row in self.picture.rows:
            late = [instant for instant in instants(row) if instant <= self.clock.now_ms()]
            if row.id in served and row.due_ms is not None and row.due_ms not in late:
                require(row.due_ms > self.clock.now_ms(), f"{row.id} is due again for nothing")
        return swept

    async def sweep_all(self) -> None:
        """Rounds until nothing is due; it must come to an end."""
        for _ in range(ROUNDS_MAX):
            if not self.picture.overdue:
                return
            await self.sweep()
        raise Broken(f"timers that never stop: {self.picture.overdue}")

    async def set_lane(self, name: str, state: LaneState) -> object:
        told = await self.do(lambda: self.engine.set_lane(name, state), writes=0)
        self.lanes_since_ms = self.clock.now_ms()
        found = {lane.name: lane.state for lane in self.picture.lanes}
        require(found[name] is state, f"lane '{name}' was set to {state} and is {found[name]}")
        return told

    # -- what is there ----------------------------------------------------------------------

    def head(self, id: ExecutionId) -> Execution:
        return self.picture.loaded[id].head

    def id(self, number: int, states: Collection[State] = frozenset(State)) -> ExecutionId:
        """Some execution, mostly one in these states; one that is not there if there is none."""
        fitting = [row.id for row in self.picture.rows if row.state in states]
        ids = fitting if fitting and number < ANY else list(self.picture.loaded)
        return ids[-1 - number % len(ids)] if ids else ExecutionId("{fp:0}:none")

    def is_live(self, lease: Lease) -> bool:
        """Whether this lease is the one that holds its execution now."""
        until_ms = self.head(lease.id).lease_until_ms if self.is_stored(lease) else None
        return until_ms is not None and until_ms > self.clock.now_ms()

    def is_stored(self, lease: Lease) -> bool:
        """Whether it is the last that was given out, in the phase that it is in."""
        row = self.picture.row(lease.id)
        return (
            row is not None
            and row.state is State.ACTIVE
            and (row.epoch, row.lease_token) == (lease.epoch, lease.token)
            and (row.reason is not Reason.GRANTED) == lease.started
        )


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)
