"""The machine: random histories of an engine, with every invariant judged after every step.

    tally = play(lambda clock: [MyStore(clock=clock)], settings(max_examples=100))

With several stores, all of them live through the same history and must give the same answers.
Time is aimed: it lands on the moments at which something happens, just before, and just after.
Stale leases and old observations are kept and used later. Needs Hypothesis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from itertools import count

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from flowfabric.core import operator
from flowfabric.core.entries import Entry
from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import Failure, Order
from flowfabric.core.model import Admission, Execution, Lease, Loaded
from flowfabric.core.operator import ExpireReason, Source
from flowfabric.core.states import BLOCKED, RUNNABLE, TERMINAL, LaneState, Reason, State
from flowfabric.core.timers import on_due
from flowfabric.engine.engine import Engine
from flowfabric.errors import FlowFabricError
from flowfabric.store.protocol import Store
from flowfabric.testing import appending, holding
from flowfabric.testing import strategies as some
from flowfabric.testing.build import TTL_MS
from flowfabric.testing.claiming import Ask, claim, submit
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.documents import DocumentWish, place_of, put_documents
from flowfabric.testing.driver import Driver, require
from flowfabric.testing.ending import finish_everything
from flowfabric.testing.holding import NOTHING
from flowfabric.testing.picking import Pick, pick_lease
from flowfabric.testing.strategies import Wish
from flowfabric.testing.tally import Tally

OpenStores = Callable[[VirtualClock], Sequence[Store]]
Discard = Callable[[Store], Coroutine[object, object, None]]


async def _closed(store: Store) -> None:
    await store.close()


ORDERS_MAX = 12

# Decisions that somebody may have made from an old look at a row.
LATE: dict[str, Callable[[Execution, int], object]] = {
    "cancel": lambda row, now_ms: operator.cancel(row, now_ms, "late", source=Source.OPERATOR),
    "expire": lambda row, now_ms: operator.expire(row, now_ms, ExpireReason.EXECUTION_DEADLINE),
    "revoke": lambda row, now_ms: operator.revoke(row, now_ms, "late"),
    "replay": operator.replay,
    "block": lambda row, now_ms: operator.block(row, now_ms, Reason.PAUSED_BY_OPERATOR),
    "unblock": operator.unblock,
    "timer": lambda row, now_ms: on_due(row, now_ms).transition,
}

# Which leases a verb is for: begun, not begun, or either. Most are for a begun attempt.
PHASES: dict[str, bool | None] = {"start": False, "release": None}
OPEN = frozenset(State) - TERMINAL
# Where an operator's verb mostly has something to do.
STATES: dict[str, frozenset[State]] = {
    "revoke": frozenset({State.ACTIVE}),
    "adopt": frozenset({State.ACTIVE}),
    "replay": TERMINAL,
    "change priority": frozenset({State.WAITING}),
    "block": RUNNABLE,
    "unblock": BLOCKED,
}
ENDS = ("cancel", "expire", "cancel own")
LAST_WORDS = ("complete", "fail", "renew", "append")


def play(open_stores: OpenStores, how: settings, discard: Discard = _closed) -> Tally:
    """Play as many histories as the settings say; the first that breaks anything is raised.

    `discard` is what becomes of a store after its history.
    """
    tally = Tally()

    class Played(EngineMachine):
        def __init__(self) -> None:
            super().__init__(open_stores, discard, tally)

    run_state_machine_as_test(Played, settings=how)
    return tally


class EngineMachine(RuleBasedStateMachine):
    """One history. Every rule is one call of a verb on every store."""

    def __init__(self, open_stores: OpenStores, discard: Discard, tally: Tally) -> None:
        super().__init__()
        self._discard = discard
        tally.histories += 1
        self.tally = tally
        self.clock = VirtualClock()
        self.drivers = [Driver(store, self.clock) for store in open_stores(self.clock)]
        self._runner = asyncio.Runner()
        self._orders: list[Order] = []
        self._numbers = count()
        self._is_broken = False
        for driver in self.drivers:
            self._runner.run(driver.open())

    @property
    def lead(self) -> Driver:
        """The driver whose memory says what is possible next; the others are led."""
        return self.drivers[0]

    def teardown(self) -> None:
        try:
            if not self._is_broken:
                for driver in self.drivers:
                    self._runner.run(finish_everything(driver))
        finally:
            for driver in self.drivers:
                self._runner.run(self._discard(driver.store))
            self._runner.close()

    def _all(self, verb: str, step: Callable[[Driver], Coroutine[object, object, object]]) -> None:
        """Take the step on every store; the answers and what is stored must be the same."""
        self._is_broken = True
        told = [self._runner.run(step(driver)) for driver in self.drivers]
        for driver, answer in zip(self.drivers, told, strict=True):
            same = _plain(answer) == _plain(told[0])
            require(same, f"{verb}: {answer!r}, elsewhere {told[0]!r}")
            if driver is not self.lead:
                same = driver.picture.alike() == self.lead.picture.alike()
                require(same, f"{verb}: {driver.picture}, elsewhere {self.lead.picture}")
        self._is_broken = False
        self.tally.steps += 1
        self.tally.answers[verb, _answer(told[0])] += 1

    def _act(self, verb: str, step: Callable[[Driver], Coroutine[object, object, object]]) -> None:
        """A step that needs something alive: on a graveyard little can go wrong."""
        is_over = all(row.state in TERMINAL for row in self.lead.picture.rows)
        if is_over and len(self._orders) < ORDERS_MAX:
            self._submit(some.PLAIN)
        self._all(verb, step)

    def _hold(
        self, verb: str, pick: Pick, call: Callable[[Engine, Lease], Awaitable[object]]
    ) -> None:
        """A verb of whoever holds the lease."""

        phase = PHASES.get(verb, True)

        async def step(driver: Driver) -> object:
            lease = await pick_lease(driver, pick, started=phase)
            if lease is None:
                return NOTHING
            return await holding.hold(driver, lease, partial(call, driver.engine), phase=phase)

        self._act(verb, step)

    def _oversee(
        self,
        verb: str,
        number: int,
        call: Callable[[Engine, ExecutionId, str], Awaitable[object]],
        then: Callable[[Execution, Loaded], bool],
    ) -> None:
        """A verb of somebody who holds nothing; `then` must hold of the row before and after."""
        states = STATES.get(verb, OPEN)
        request = self._new_request()

        async def step(driver: Driver) -> object:
            id = driver.id(number, states)
            return await holding.oversee(
                driver, id, lambda id: call(driver.engine, id, request), then
            )

        self._act(verb, step)

    def _new_request(self) -> str:
        """One token on all stores: it is kept with the row, and rows are compared."""
        return f"request-{next(self._numbers)}"

    # -- time ---------------------------------------------------------------------------------

    @rule(number=some.numbers, miss_ms=some.misses_ms)
    def aim(self, number: int, miss_ms: int) -> None:
        moments = self.lead.moments()
        if moments:
            self._aim(moments[number % len(moments)] + miss_ms)

    def _aim(self, moment_ms: int) -> None:
        self.clock.set(max(moment_ms, self.clock.now_ms()))
        self._all("time", lambda driver: driver.pass_time())

    @rule(ms=some.jumps_ms)
    def jump(self, ms: int) -> None:
        self._aim(self.clock.now_ms() + ms)

    @rule()
    def sweep(self) -> None:
        self._all("sweep", lambda driver: driver.sweep())

    @rule()
    def sweep_all(self) -> None:
        self._all("sweep", lambda driver: driver.sweep_all())

    # -- submitting and claiming --------------------------------------------------------------

    @initialize(wishes=st.lists(some.wishes, min_size=2, max_size=4))
    def begin(self, wishes: list[Wish]) -> None:
        for wish in wishes:
            self._submit(wish)

    @precondition(lambda self: len(self._orders) < ORDERS_MAX)
    @rule(wish=some.wishes)
    def submit(self, wish: Wish) -> None:
        self._submit(wish)

    def _submit(self, wish: Wish) -> None:
        order = wish.order(len(self._orders), self.clock.now_ms())
        self._orders.append(order)
        self._all("submit", lambda driver: submit(driver, order))

    @rule(number=some.numbers, miss_ms=st.none() | some.misses_ms)
    def submit_again(self, number: int, miss_ms: int | None) -> None:
        """At any time, or when its key is about to be forgotten."""
        order = self._orders[-1 - number % len(self._orders)]
        _, until_ms = self.lead.keys.get((order.namespace, order.key or ""), ("", 0))
        if miss_ms is not None and until_ms:
            self._aim(until_ms + miss_ms)
        self._all("submit again", lambda driver: submit(driver, order))

    @rule(ask=some.asks)
    def claim(self, ask: Ask) -> None:
        verb = "grant" if not ask.start else "claim" if ask.again is None else "claim again"
        self._all(verb, lambda driver: claim(driver, ask))

    # -- holding a lease ------------------------------------------------------------------------

    @rule(pick=some.picks)
    def start(self, pick: Pick) -> None:
        self._hold("start", pick, lambda engine, lease: engine.start(lease))

    @rule(pick=some.picks, ttl_ms=some.ttls_ms)
    def renew(self, pick: Pick, ttl_ms: int) -> None:
        self._act("renew", lambda driver: holding.renew(driver, pick, ttl_ms))

    @rule(pick=some.picks, pct=st.sampled_from((None, 0, 50, 100)))
    def progress(self, pick: Pick, pct: int | None) -> None:
        async def said(engine: Engine, lease: Lease) -> str:
            await engine.progress(lease, pct, "so far")
            return "said"

        self._hold("progress", pick, said)

    @rule(pick=some.picks, result=some.results)
    def complete(self, pick: Pick, result: bytes) -> None:
        self._act("complete", lambda driver: holding.complete(driver, pick, result))

    @rule(pick=some.picks, failure=some.failures)
    def fail(self, pick: Pick, failure: Failure) -> None:
        self._act("fail", lambda driver: holding.fail(driver, pick, failure))

    @rule(pick=some.picks, ms=some.spans_ms)
    def delay(self, pick: Pick, ms: int) -> None:
        until_ms = self.clock.now_ms() + ms
        self._hold("delay", pick, lambda engine, lease: engine.delay(lease, until_ms))

    @rule(pick=some.picks)
    def release(self, pick: Pick) -> None:
        self._hold("release", pick, lambda engine, lease: engine.release(lease))

    @rule(picks=st.lists(some.picks, min_size=2, max_size=4))
    def renew_many(self, picks: list[Pick]) -> None:
        self._act("renew many", lambda driver: holding.renew_many(driver, picks))

    @rule(picks=st.lists(some.picks, min_size=2, max_size=4), ms=some.spans_ms)
    def finish_many(self, picks: list[Pick], ms: int) -> None:
        until_ms = self.clock.now_ms() + ms
        self._act("finish many", lambda driver: holding.finish_many(driver, picks, until_ms))

    @rule(picks=st.lists(some.picks, min_size=1, max_size=3), entries=some.entries)
    def append(self, picks: list[Pick], entries: list[Entry]) -> None:
        self._act("append", lambda driver: appending.append(driver, picks, entries))

    @rule(pick=some.picks, entries=some.entries, whole=st.booleans())
    def end_with_entries(self, pick: Pick, entries: list[Entry], whole: bool) -> None:
        self._act(
            "end with entries",
            lambda driver: appending.end_with(driver, pick, entries, whole=whole),
        )

    @rule(number=some.numbers, miss_ms=some.misses_ms, verb=st.sampled_from(LAST_WORDS))
    def use_at_its_end(self, number: int, miss_ms: int, verb: str) -> None:
        """The moment that matters most: a lease in its last millisecond, and in the next two."""
        self._act("pick", lambda driver: pick_lease(driver, Pick("live", number)))
        ends = [row.lease_until_ms for row in self.lead.picture.rows if row.lease_until_ms]
        if ends:
            self._aim(sorted(ends)[number % len(ends)] + miss_ms)
        pick = Pick("live" if miss_ms < 0 else "over", number)
        if verb == "complete":
            self._act(verb, lambda driver: holding.complete(driver, pick, b"in time"))
        elif verb == "fail":
            self._act(verb, lambda driver: holding.fail(driver, pick, Failure("broke")))
        elif verb == "append":
            last = [Entry("notes", "last", b"word")]
            self._act(verb, lambda driver: appending.append(driver, [pick], last))
        else:
            self._act(verb, lambda driver: holding.renew(driver, pick, TTL_MS))

    # -- overseeing -----------------------------------------------------------------------------

    @rule(number=some.numbers, pick=some.picks, verb=st.sampled_from(ENDS))
    def end(self, number: int, pick: Pick, verb: str) -> None:
        """One rule for all that ends things: else little lives long enough to be of interest."""
        if verb == "cancel own":
            request = self._new_request()
            self._act(verb, lambda driver: holding.cancel_own(driver, pick, request))
        elif verb == "cancel":
            self._oversee(
                verb,
                number,
                lambda engine, id, request: engine.cancel(id, "no", request=request),
                lambda was, now: now.head.state is State.CANCELLED,
            )
        else:
            self._oversee(
                verb,
                number,
                lambda engine, id, request: engine.expire(
                    id, ExpireReason.EXECUTION_DEADLINE, request=request
                ),
                lambda was, now: now.head.state is State.EXPIRED or was == now.head,
            )

    @rule(number=some.numbers, worker=st.sampled_from((None, "worker-0", "worker-1")))
    def revoke(self, number: int, worker: str | None) -> None:
        self._oversee(
            "revoke",
            number,
            lambda engine, id, request: engine.revoke(id, worker=worker, request=request),
            lambda was, now: (
                (was == now.head) != (was.state is State.ACTIVE and worker in (None, was.worker))
            ),
        )

    @rule(number=some.numbers)
    def replay(self, number: int) -> None:
        """A deadline that is past would end it again at once."""
        now_ms = self.clock.now_ms()
        self._oversee(
            "replay",
            number,
            lambda engine, id, request: engine.replay(id, "again", request=request),
            lambda was, now: now.head.deadline_ms is None or now.head.deadline_ms > now_ms,
        )

    @rule(number=some.numbers, reason=some.blocks)
    def block(self, number: int, reason: Reason) -> None:
        self._block(number, reason)

    def _block(self, number: int, reason: Reason) -> None:
        self._oversee(
            "block",
            number,
            lambda engine, id, request: engine.block(id, reason, request=request),
            lambda was, now: now.head.paused or now.head.admission is not Admission.NONE,
        )

    @rule(
        number=some.numbers,
        reasons=st.lists(some.blocks, max_size=2),
        expected=some.blocked_by,
    )
    def unblock(self, number: int, reasons: list[Reason], expected: Reason | None) -> None:
        """One block goes away, and only one: behind it there may be another."""
        for reason in reasons:
            self._block(number, reason)
        self._oversee(
            "unblock",
            number,
            lambda engine, id, request: engine.unblock(id, expected, request=request),
            lambda was, now: (
                (was.paused != now.head.paused) != (was.admission is not now.head.admission)
            ),
        )

    @rule(number=some.numbers, priority=some.priorities)
    def change_priority(self, number: int, priority: int) -> None:
        self._oversee(
            "change priority",
            number,
            lambda engine, id, request: engine.change_priority(id, priority, request=request),
            lambda was, now: now.head.priority == priority,
        )

    @rule(number=some.numbers, tags=some.tags)
    def set_tags(self, number: int, tags: dict[str, str]) -> None:
        self._oversee(
            "set tags",
            number,
            lambda engine, id, request: engine.set_tags(id, tags, request=request),
            lambda was, now: tags.items() <= now.tags.items(),
        )

    @rule(number=some.numbers)
    def adopt(self, number: int) -> None:
        self._act("adopt", lambda driver: holding.adopt(driver, number))

    @rule(name=some.lanes, state=some.lane_states)
    def set_lane(self, name: str, state: LaneState) -> None:
        self._all(f"lane {state}", lambda driver: driver.set_lane(name, state))

    # -- documents ----------------------------------------------------------------------------

    @rule(wishes=st.lists(some.document_wishes, min_size=1, max_size=4, unique_by=place_of))
    def put_documents(self, wishes: list[DocumentWish]) -> None:
        self._all("put", lambda driver: put_documents(driver, wishes))

    # -- deciding from what was seen before -------------------------------------------------------

    @rule()
    def observe(self) -> None:
        for driver in self.drivers:
            driver.observed += [row for row in driver.picture.rows if row not in driver.observed]

    @precondition(lambda self: bool(self.lead.observed))
    @rule(number=st.integers(0, 40), name=st.sampled_from(sorted(LATE)), whole=st.booleans())
    def decide_late(self, number: int, name: str, whole: bool) -> None:
        decide = LATE[name]
        self._all(
            f"late {name}", lambda driver: holding.decide_late(driver, number, decide, whole=whole)
        )


def _plain(told: object) -> object:
    """An answer without the classes that its parts happen to have."""
    return msgspec.to_builtins(told, enc_hook=repr)


def _answer(told: object) -> str:
    if told is NOTHING:
        return NOTHING
    return told.code if isinstance(told, FlowFabricError) else "done"
