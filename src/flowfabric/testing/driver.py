"""Driver: an engine on one store, with a memory, that judges every call it makes.

Whatever is called, the store is looked at before and after: a refused call must have changed
nothing, a granted one only what it may. Executions, leases and observations are named by number,
so that several drivers on several stores can be led through the same history.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Literal, NamedTuple, TypeVar

import msgspec

from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import Order
from flowfabric.core.model import Execution, Lease
from flowfabric.core.policy import parse_policy
from flowfabric.core.states import CLAIMABLE, LaneState, Reason, State
from flowfabric.engine.engine import Engine
from flowfabric.engine.lanes import REMEMBER_MS
from flowfabric.engine.timekeeper import Sweep, Timekeeper
from flowfabric.errors import (
    FlowFabricError,
    IdempotencyConflict,
    InvalidInput,
    LaneClosed,
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
LANES = ("main", "side")
TTLS_MS = (5_000, 30_000)
ANY = 6
BATCH = 3
ROUNDS_MAX = 200
# Everything else that a verb raises is a fault, not an answer.
ANSWERS = (Refused, LeaseLost, NotFound, InvalidInput)

Mode = Literal["live", "over", "kept", "foreign"]


class Pick(NamedTuple):
    """Which lease to show: one that is alive, one that nobody has noticed to be over, any that was
    ever handed out, or a forged one."""

    mode: Mode = "live"
    number: int = 0
    twist: int = 0


class Ask(NamedTuple):
    """What a claim asks for; `again` repeats the claim with the token of that number."""

    lanes: tuple[str, ...]
    limit: int = 1
    who: int = 0
    ttl_ms: int = 5_000
    start: bool = True
    only: int | None = None
    again: int | None = None


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
        self._handed: dict[tuple[ExecutionId, int], str] = {}
        self._keys: dict[tuple[str, str], tuple[ExecutionId, int]] = {}
        self._lanes_since_ms = 0
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

    async def close(self) -> None:
        await self.store.close()

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
        found |= {until_ms for _, until_ms in self._keys.values()}
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

    # -- submitting and claiming ----------------------------------------------------------------

    async def submit(self, order: Order) -> object:
        before, now_ms = self.picture, self.clock.now_ms()
        lanes = {lane.name: lane.state for lane in before.lanes}
        is_closed = lanes.get(order.lane) in (LaneState.DRAINING, LaneState.DISABLED)
        known = self._keys.get((order.namespace, order.key or ""))
        first = known[0] if order.key and known and known[1] > now_ms else None
        answers = await self.do(lambda: self.engine.submit([order]))
        if isinstance(answers, FlowFabricError):
            return answers
        made = answers[0]
        require(isinstance(made.error, LaneClosed) == is_closed, f"{made} while {lanes}")
        if isinstance(made.error, IdempotencyConflict) or made.error is None:
            is_new = first is None and before.row(order.id) is None
            wanted = (first or order.id, is_new)
            require((made.id, made.created) == wanted, f"{made} for {wanted}")
        if made.error is not None:
            require(before.log == self.picture.log, f"{made.error} and yet it was written")
        elif made.created and order.key:
            until_ms = now_ms + parse_policy(order.policy).dedup_window_ms
            self._keys[order.namespace, order.key] = (order.id, until_ms)
        return made.error or made

    async def claim(self, ask: Ask) -> list[Lease] | FlowFabricError:
        """Claim, and compare with what the rows say must be handed out."""
        engine = self.engines[ask.who]
        only = None if ask.only is None else self.id(ask.only, CLAIMABLE)
        token, limit = self._token(ask)
        serving = await self._serving(ask)
        before, again = self.picture, ask.again is not None
        told = await self.do(
            lambda: engine.claim(
                ask.lanes,
                limit,
                worker=f"worker-{ask.who}",
                token=token,
                ttl_ms=ask.ttl_ms,
                start=ask.start,
                only=only,
                repeated=again,
            )
        )
        if isinstance(told, FlowFabricError):
            require(only is not None and before.row(only) is None, f"no claim: {told!r}")
            return told
        mine = [
            row for row in before.rows if row.state is State.ACTIVE and row.lease_token == token
        ]
        fitting = [row for row in before.rows if row.state in CLAIMABLE and row.lane in serving]
        fitting = [row for row in fitting if row.namespace == engine.namespace]
        fitting = [row for row in fitting if only in (None, row.id)]
        wanted = mine if again and mine and serving else sorted(fitting, key=place)[:limit]
        handed = [lease.id for lease in told]
        require(handed == [row.id for row in sorted(wanted, key=place)], f"handed out {handed}")
        for lease in told:
            self._keep(lease, is_new=lease.id not in {row.id for row in mine})
        return told

    async def _serving(self, ask: Ask) -> tuple[str, ...]:
        """The lanes that hand out work. The engine that did not change them hears of it later."""
        known = {lane.name: lane.state for lane in self.picture.lanes}
        closed = (LaneState.PAUSED, LaneState.DISABLED)
        stored = tuple(name for name in ask.lanes if known.get(name) not in closed)
        if ask.who == 0 or self.clock.now_ms() >= self._lanes_since_ms + REMEMBER_MS:
            return stored
        return await self.engines[ask.who].lanes.serving(ask.lanes)

    async def set_lane(self, name: str, state: LaneState) -> object:
        told = await self.do(lambda: self.engine.set_lane(name, state), writes=0)
        self._lanes_since_ms = self.clock.now_ms()
        found = {lane.name: lane.state for lane in self.picture.lanes}
        require(found[name] is state, f"lane '{name}' was set to {state} and is {found[name]}")
        return told

    def _token(self, ask: Ask) -> tuple[str, int]:
        if ask.again is not None and self.tokens:
            return self.tokens[-1 - ask.again % len(self.tokens)]
        self.tokens.append((f"token-{len(self.tokens)}", ask.limit))
        return self.tokens[-1]

    def _keep(self, lease: Lease, *, is_new: bool) -> None:
        """At most one owner for each epoch of each execution, for ever."""
        require(lease.head == self.picture.row(lease.id), f"{lease} is not what is stored")
        owner = self._handed.setdefault((lease.id, lease.epoch), lease.token)
        is_taken = is_new and any(self.is_live(other) for other in self._others(lease))
        require(owner == lease.token and not is_taken, f"{lease} belongs to {owner}")
        self.leases.append(lease)

    def _others(self, lease: Lease) -> list[Lease]:
        mine = (lease.token, lease.epoch)
        same = [other for other in self.leases if other.id == lease.id]
        return [other for other in same if (other.token, other.epoch) != mine]

    def head(self, id: ExecutionId) -> Execution:
        return self.picture.loaded[id].head

    def id(self, number: int, states: Collection[State] = frozenset(State)) -> ExecutionId:
        """Some execution, mostly one in these states; one that is not there if there is none."""
        fitting = [row.id for row in self.picture.rows if row.state in states]
        ids = fitting if fitting and number < ANY else list(self.picture.loaded)
        return ids[-1 - number % len(ids)] if ids else ExecutionId("{fp:0}:none")

    # -- leases ---------------------------------------------------------------------------------

    def is_live(self, lease: Lease) -> bool:
        """Whether this lease is the one that holds its execution now."""
        until_ms = self.head(lease.id).lease_until_ms if self._is_stored(lease) else None
        return until_ms is not None and until_ms > self.clock.now_ms()

    def _is_stored(self, lease: Lease) -> bool:
        """Whether it is the last that was given out, in the phase that it is in."""
        row = self.picture.row(lease.id)
        return (
            row is not None
            and row.state is State.ACTIVE
            and (row.epoch, row.lease_token) == (lease.epoch, lease.token)
            and (row.reason is not Reason.GRANTED) == lease.started
        )

    async def lease(self, pick: Pick, *, started: bool | None = True) -> Lease | None:
        """The lease to show; a live one is claimed if nobody holds any in this phase."""
        kept = self._leases(pick.mode, started)
        if not kept and pick.mode != "kept":
            start, ttl_ms = started is not False, TTLS_MS[pick.twist % len(TTLS_MS)]
            for who in range(len(self.engines)):
                await self.claim(Ask(LANES, who=who, ttl_ms=ttl_ms, start=start))
            kept = self._leases("live", started) or self.leases
        if not kept:
            return None
        lease = kept[-1 - pick.number % len(kept)]
        return lease if pick.mode != "foreign" else self._forged(lease, pick.twist)

    def is_last(self, lease: Lease) -> bool:
        """Whether its holder was given no newer copy of this lease."""
        mine = (lease.id, lease.token, lease.epoch)
        copies = [kept for kept in self.leases if (kept.id, kept.token, kept.epoch) == mine]
        return copies[-1:] == [lease]

    def _leases(self, mode: Mode, started: bool | None) -> list[Lease]:
        if mode == "kept":
            return self.leases
        stored = [lease for lease in self.leases if self._is_stored(lease)]
        fitting = [lease for lease in stored if started in (None, lease.started)]
        return [lease for lease in fitting if self.is_live(lease) == (mode != "over")]

    def _forged(self, lease: Lease, twist: int) -> Lease:
        """The lease as somebody would show it who does not hold it."""
        head = lease.head
        reason = Reason.NONE if head.reason is Reason.GRANTED else Reason.GRANTED
        forgeries = (
            {"epoch": head.epoch + 1},
            {"epoch": head.epoch - 1},
            {"lease_token": "token-of-nobody"},
            {"reason": reason},
        )
        forged: Execution = msgspec.structs.replace(head, **forgeries[twist % len(forgeries)])
        return Lease(forged, lease.payload)


def place(row: Execution) -> tuple[int, int, str]:
    return (-row.priority, row.created_ms, row.id)


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)
