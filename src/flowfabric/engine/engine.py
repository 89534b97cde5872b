"""Engine: the public verbs below the decorators.

For people who write their own runtimes. Each verb is repeatable: ids and tokens are the caller's,
and an answer that was lost is given again. Verbs that act on a lease take the lease; verbs of
operators take an id, look first, and are decided again when somebody was faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from flowfabric.core import exact, lifecycle, names, refusal
from flowfabric.core.duration import DURATION_MS_MAX
from flowfabric.core.entries import Append, Appended, Entry
from flowfabric.core.ids import (
    ExecutionId,
    PartitionCounts,
    parse_execution_id,
)
from flowfabric.core.lifecycle import Failure, Order
from flowfabric.core.model import Claim, Execution, Inserted, Lease, Submission, Want
from flowfabric.core.routes import routes_of
from flowfabric.core.states import TERMINAL
from flowfabric.core.transition import BATCH_LIMIT, Applied, Rejected, Transition, patched
from flowfabric.engine.conflict import persistently
from flowfabric.engine.direct_ends import DirectEnds, Followed
from flowfabric.engine.dispatcher import Dispatcher
from flowfabric.engine.flows import Flows
from flowfabric.engine.handed_out import HandedOut
from flowfabric.engine.isolation import isolated
from flowfabric.engine.known_flows import KnownFlows
from flowfabric.engine.lanes import Lanes
from flowfabric.engine.outcomes import (
    Completed,
    Delayed,
    Failed,
    Finished,
    Follow,
    Outcome,
    Released,
    about,
    answer,
    completions,
    decide_or_refuse,
    ends_of,
    refused,
    unwanted_work,
)
from flowfabric.engine.overseeing import Overseeing
from flowfabric.engine.reading import Reading
from flowfabric.engine.registry import Registry
from flowfabric.engine.renewals import Renewed, held_as, lease_error, not_renewed, renewed
from flowfabric.engine.rounds import Rounds
from flowfabric.engine.submissions import Submitted, lane_refusal, require_partition, submitted
from flowfabric.engine.usable_leases import usable
from flowfabric.engine.waves import waves
from flowfabric.errors import (
    ExecutionNotLeaseable,
    FlowFabricError,
    InvalidInput,
    LeaseExpired,
    LeaseRevoked,
    StaleLease,
)
from flowfabric.forking import begin_here_and_in_children
from flowfabric.store.clock import Clock, Embedded, FollowingClock, SteadyClock
from flowfabric.store.hints import Hint, Hints
from flowfabric.store.protocol import Store

T = TypeVar("T")

LEASE_TTL_FLOOR_MS = 5_000


class Engine(Overseeing):
    """The verbs below the decorators, on one store."""

    def __init__(
        self, store: Store, *, clock: Clock | None = None, namespace: str = "default"
    ) -> None:
        self.store = store
        self.clock = _shown(store, clock)
        self.namespace = names.namespace_name(namespace)
        self.counts = PartitionCounts()
        begin_here_and_in_children(self._begin)

    def _begin(self) -> None:
        store = self.store
        self.lanes = Lanes(store, self.clock)
        self.registry = Registry(store, self.clock)
        self.read = Reading(store, self.clock, self.lanes, self.registry)
        self.known = KnownFlows(store.hints)
        self.dispatcher = Dispatcher(store, self.clock, known=self.known)
        self.flows = Flows(store, self.clock, self.lanes, self.dispatcher, known=self.known)
        rounds = Rounds(store, self.dispatcher.counts, self.known)
        self._direct = DirectEnds(
            self.known, self.flows.learning, rounds, clock=self.clock, hints=store.hints
        )
        self._handed_out = HandedOut()
        self._know_counts(self.counts)

    def _know_counts(self, counts: PartitionCounts) -> None:
        self.counts = self.flows.counts = self.flows.build.counts = counts

    @property
    def hints(self) -> Hints:
        """Wake-ups about what the writes of this process made possible."""
        return self.store.hints

    async def open(self) -> None:
        self._know_counts(await self.store.migrate())
        asked_ms = self.clock.now_ms()
        self.clock.follow(await self.store.now(), asked_ms)

    async def close(self) -> None:
        await self.flows.learning.close()
        await self.store.close()

    # -- submitting -------------------------------------------------------------------------

    async def submit(self, orders: Sequence[Order]) -> list[Submitted]:
        """Create executions, in order, in as few calls as the batch limit allows.

        A key or an id that was used before returns the execution it made; with another payload it
        is a conflict. A refused order is answered with its error and does not affect the others.
        A closed lane or a passed deadline refuses only orders that are new.
        """
        answers: list[Submitted] = []
        for start in range(0, len(orders), BATCH_LIMIT):
            answers.extend(await self._submit(orders[start : start + BATCH_LIMIT]))
        return answers

    async def _submit(self, orders: Sequence[Order]) -> list[Submitted]:
        asked_ms = self.clock.now_ms()
        closed = await self.lanes.closed({order.lane for order in orders})
        refused: dict[int, FlowFabricError] = {}
        too_late: dict[int, FlowFabricError] = {}

        async def once(_: bool) -> list[Inserted]:
            now_ms = self.clock.now_ms()
            batch: list[Submission] = []
            refused.clear()
            too_late.clear()
            for position, order in enumerate(orders):
                shut = lane_refusal(order, closed)
                try:
                    require_partition(order.id, self.counts)
                    late = shut or lifecycle.lateness(order, now_ms, asked_ms)
                    batch.append(lifecycle.submit(order, now_ms, create=late is None))
                    if late is not None:
                        too_late[position] = late
                except FlowFabricError as error:
                    refused[position] = shut or error
            return await self.store.insert(batch, now_ms) if batch else []

        inserted = iter(await persistently(self.clock, once))
        return [
            Submitted(order.id, created=False, error=refused[position])
            if position in refused
            else submitted(order, next(inserted), too_late.get(position))
            for position, order in enumerate(orders)
        ]

    # -- holding a lease --------------------------------------------------------------------

    async def claim(
        self,
        lanes: Sequence[str],
        limit: int,
        *,
        tasks: Sequence[str],
        worker: str,
        token: str,
        ttl_ms: int,
        start: bool = True,
        only: ExecutionId | None = None,
        repeated: bool = False,
    ) -> list[Lease]:
        """Take up to `limit` ready executions of these tasks, in these lanes, best first;
        `start=False` grants without beginning. Other tasks stay for workers that know them.

        The caller chooses the token, random and new for each claim. It guards every lease of this
        claim, and with `repeated` it returns them again when the reply was lost. `only` takes that
        one execution or nothing, and raises if it does not exist.
        """
        follow = Follow(
            lanes=lanes, tasks=tasks, limit=limit, worker=worker, token=token, ttl_ms=ttl_ms
        )
        ask = await self._ask(follow)
        # What an earlier call took is answered whatever became of its lane.
        if limit < 1 or not (ask.routes or repeated):
            return []

        async def once(is_repeated: bool) -> list[Lease]:
            claim = msgspec.structs.replace(
                ask,
                now_ms=self.clock.now_ms(),
                start=start,
                only=None if only is None else parse_execution_id(only),
                repeated=repeated or is_repeated,
            )
            return await self.store.claim(claim)

        leases = await usable(await persistently(self.clock, once), self._apply)
        if only is not None and not leases:
            await self.read.load(only)
        self._handed_out.add(leases)
        # A claim starts timers; unless told, whoever keeps them looks only now and then.
        due = [lease.head.due_ms for lease in leases if lease.head.due_ms is not None]
        self.hints.publish(Hint(due_ms=min(due, default=None)))
        return leases

    async def _ask(self, follow: Follow) -> Claim:
        _require_ttl(follow.ttl_ms)
        wanted = dict.fromkeys(names.lane_name(lane) for lane in follow.lanes)
        serving = await self.lanes.serving(tuple(wanted))
        return Claim(
            namespace=self.namespace,
            routes=routes_of(serving, tuple(follow.tasks)),
            limit=min(exact.integer(follow.limit, "limit", "use 0 or more"), BATCH_LIMIT),
            worker=names.worker_name(follow.worker),
            token=names.lease_token(follow.token),
            ttl_ms=follow.ttl_ms,
            now_ms=self.clock.now_ms(),
        )

    async def start(self, lease: Lease) -> Lease:
        """Begin the attempt of a granted lease; returns the started lease."""
        if lease.started:
            raise InvalidInput(
                "the lease has already started", field="lease", hint="use it as it is"
            )
        (lease,) = await self._as_stored([lease])
        transition, reply, now_ms = await self._apply_one(
            lambda now_ms: lifecycle.start(lease, now_ms)
        )
        if isinstance(reply, Applied):
            begun = Lease(patched(lease.head, transition.patch), lease.payload)
        elif reply.current is not None and refusal.started_by(reply.current, lease):
            begun = Lease(reply.current, lease.payload)
        else:
            raise _grant_refusal(reply.current, lease, now_ms)
        self._handed_out.add([begun])
        return begun

    async def renew(self, leases: Sequence[Lease], ttl_ms: int) -> list[Renewed]:
        """Extend many leases in one call; answers in the order of the leases. A lost lease is
        answered with its error."""
        _require_ttl(ttl_ms)
        answers: dict[ExecutionId, Renewed] = {}
        for start in range(0, len(leases), BATCH_LIMIT):
            some = leases[start : start + BATCH_LIMIT]
            answered, lost = await isolated(some, lambda leases: self._renew(leases, ttl_ms))
            answers |= {each.lease.id: each for each in answered}
            # They run out: their holder stops in time.
            answers |= {
                lease.id: Renewed(lease, not_renewed(lease, error)) for lease, error in lost
            }
        return [answers[lease.id] for lease in leases]

    async def _renew(self, given: Sequence[Lease], ttl_ms: int) -> list[Renewed]:
        leases = await self._as_stored(given)
        now_ms, replies = await self._apply(
            lambda now_ms: [lifecycle.renew(lease, now_ms, ttl_ms) for lease in leases],
            urgent=True,
        )
        answers = [
            renewed(lease, reply, now_ms, ttl_ms)
            for lease, reply in zip(leases, replies, strict=True)
        ]
        for lease, after in zip(leases, answers, strict=True):
            if after.error is None:
                self._handed_out.replace(after.lease, lease)
        return answers

    async def _as_stored(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Leases that nobody can have forged: those that this engine has handed out as they are,
        of others what the store says, if they are held as they say."""
        strange = self._handed_out.strange(leases)
        if not strange:
            return leases
        want = Want(ids=[parse_execution_id(lease.id) for lease in strange])
        found = await persistently(self.clock, lambda _: self.store.load(want))
        rows = {each.head.id: each.head for each in found if each is not None}
        return [held_as(rows.get(lease.id), lease) for lease in leases]

    async def progress(
        self, lease: Lease, pct: int | None = None, message: str | None = None
    ) -> None:
        """Store the progress of an attempt; an omitted value stays as it was."""
        _, reply, now_ms = await self._apply_one(
            lambda now_ms: lifecycle.progress(lease, now_ms, pct, message)
        )
        if isinstance(reply, Rejected):
            raise lease_error(reply.current, lease, now_ms)

    async def append(self, batch: Sequence[tuple[Lease, tuple[Entry, ...]]]) -> list[bool]:
        """Store entries of many attempts in one call; False for those whose lease was lost."""
        wanted = [Append(lease.id, lifecycle.working(lease), kept) for lease, kept in batch]
        replies = await persistently(
            self.clock, lambda _: self.store.append(wanted, self.clock.now_ms())
        )
        return [isinstance(reply, Appended) for reply in replies]

    async def finish(self, outcomes: Sequence[Outcome]) -> list[Finished]:
        """Store the outcomes of many leases in one call; a refusal does not affect the others."""
        return (await self.finish_and_follow(outcomes)).answers

    async def finish_and_follow(
        self, outcomes: Sequence[Outcome], follow: Follow | None = None
    ) -> Followed:
        """The same, for a worker that can run at once what these ends release.

        For members of flows in the cache of this engine, what follows from an end is written with
        it, and one released member for each of them is claimed in the same write.
        """
        claim = None if follow is None else await self._ask(follow)
        said = await self._said(outcomes)
        followed = await self._direct.finish(said, self._finish, claim)
        self._handed_out.forget([answer.id for answer in followed.answers if answer.error is None])
        self._handed_out.add(followed.leases)
        return followed

    async def _said(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """The same about leases as they are stored."""
        said = [outcome.lease for outcome in outcomes]
        leases = await self._as_stored(said)
        if leases is said:
            return outcomes
        return [
            outcome if outcome.lease is lease else about(outcome, lease)
            for outcome, lease in zip(outcomes, leases, strict=True)
        ]

    async def _finish(self, outcomes: Sequence[Outcome]) -> list[Finished]:
        decided: list[Transition | FlowFabricError] = []

        def decide_all(now_ms: int) -> list[Transition]:
            decided[:] = [decide_or_refuse(outcome, now_ms) for outcome in outcomes]
            return [decision for decision in decided if isinstance(decision, Transition)]

        now_ms, replies = await self._apply(decide_all)
        written = iter(replies)
        answers = [
            answer(outcome, decision, next(written), now_ms)
            if isinstance(decision, Transition)
            else Finished(id=outcome.lease.id, state=None, error=decision)
            for outcome, decision in zip(outcomes, decided, strict=True)
        ]
        rejected = Rejected in map(type, replies)
        if rejected:
            await self._compare_results(outcomes, answers, now_ms)
        self.hints.publish(Hint(finished=ends_of(outcomes, answers)))
        if rejected and (unwanted := unwanted_work(outcomes, decided, replies)):
            ends = await self._finish(list(unwanted.values()))
            for place, end in zip(unwanted, ends, strict=True):
                answers[place] = end
        return answers

    async def _compare_results(
        self, outcomes: Sequence[Outcome], answers: list[Finished], now_ms: int
    ) -> None:
        """A completion that happened before counts as repeated only with the same result."""
        again = completions(outcomes, answers)
        if not again:
            return
        ids = [outcome.lease.id for outcome in again.values()]
        kept = {each.id: each.result for each in await self.store.endings(ids) if each is not None}
        for place, outcome in again.items():
            if kept.get(outcome.lease.id) != outcome.result:
                loaded = (await self.store.load(Want(ids=[outcome.lease.id])))[0]
                row = loaded.head if loaded is not None else None
                answers[place] = refused(outcome, row, now_ms)

    async def complete(self, lease: Lease, result: bytes) -> Finished:
        return await self._finish_one(Completed(lease, result))

    async def fail(self, lease: Lease, failure: Failure) -> Finished:
        return await self._finish_one(Failed(lease, failure))

    async def delay(self, lease: Lease, until_ms: int) -> Finished:
        return await self._finish_one(Delayed(lease, until_ms))

    async def release(self, lease: Lease) -> Finished:
        return await self._finish_one(Released(lease))

    async def _finish_one(self, outcome: Outcome) -> Finished:
        finished = (await self.finish([outcome]))[0]
        if finished.error is not None:
            raise finished.error
        return finished

    # -- the road to the store --------------------------------------------------------------

    async def _apply(
        self, decide: Callable[[int], list[Transition]], *, urgent: bool = False
    ) -> tuple[int, list[Applied | Rejected]]:
        """Decide and apply; a clock that was off means deciding again with the right time."""

        async def once(_: bool) -> tuple[int, list[Applied | Rejected]]:
            now_ms = self.clock.now_ms()
            transitions = decide(now_ms)
            replies: dict[int, Applied | Rejected] = {}
            for wave in waves(transitions):
                batch = [transitions[position] for position in wave]
                answers = await self.store.apply(batch, now_ms, urgent=urgent)
                replies.update(zip(wave, answers, strict=True))
            return now_ms, [replies[position] for position in range(len(transitions))]

        return await persistently(self.clock, once)

    async def _apply_one(
        self, decide: Callable[[int], Transition]
    ) -> tuple[Transition, Applied | Rejected, int]:
        decided: list[Transition] = []

        def decide_list(now_ms: int) -> list[Transition]:
            decided[:] = [decide(now_ms)]
            return decided

        now_ms, replies = await self._apply(decide_list)
        return decided[0], replies[0], now_ms


def _shown(store: Store, clock: Clock | None) -> FollowingClock:
    """What the store's time is thought to be: one estimate for all engines of a process."""
    if clock is None and isinstance(store, Embedded):
        clock = store.clock
    if clock is not None or store.caller_clock is None:
        store.caller_clock = FollowingClock(clock or SteadyClock())
    return store.caller_clock


def _grant_refusal(row: Execution | None, lease: Lease, now_ms: int) -> FlowFabricError:
    """A grant has names of its own for being too late and for being somebody else's."""
    error = lease_error(row, lease, now_ms)
    if isinstance(error, LeaseExpired | LeaseRevoked):
        return ExecutionNotLeaseable(str(error), code="claim_grant_expired")
    if isinstance(error, StaleLease) or (row is not None and row.state not in TERMINAL):
        return ExecutionNotLeaseable(str(error), code="invalid_claim_grant")
    return error


def _require_ttl(ttl_ms: int) -> None:
    if type(ttl_ms) is not int or not LEASE_TTL_FLOOR_MS <= ttl_ms <= DURATION_MS_MAX:
        raise InvalidInput(
            f"the lease ttl must be at least {LEASE_TTL_FLOOR_MS // 1000} s (got {ttl_ms!r})",
            field="ttl_ms",
            hint=f"pass whole milliseconds, {LEASE_TTL_FLOOR_MS} or more",
        )
