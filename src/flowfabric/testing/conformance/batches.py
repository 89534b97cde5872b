"""Batches whose members write different values, with one among them whose guard does not hold.

A store may write many rows of one shape by one statement, and another one when all of them get the
same values: every guard must be in each of these statements. So each verb is tried with values
that differ from row to row, and with exactly one wrong guard in a call: a second one could hide
that the first is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import pytest

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.model import Flow
from flowfabric.core.lifecycle import (
    Failure,
    complete,
    delay,
    fail,
    progress,
    release,
    renew,
    start,
)
from flowfabric.core.model import Execution, Lease
from flowfabric.core.operator import (
    ExpireReason,
    Source,
    block,
    cancel,
    change_priority,
    expire,
    replay,
    revoke,
    set_tags,
    unblock,
)
from flowfabric.core.states import LaneState, Reason
from flowfabric.core.timers import on_due
from flowfabric.core.transition import (
    Applied,
    Changeset,
    Held,
    LaneChange,
    Rejected,
    Seen,
    Transition,
    patched,
)
from flowfabric.store.protocol import Store
from flowfabric.testing.build import TTL_MS, order, policy
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.flow_steps import flow_of, put_flow
from flowfabric.testing.conformance.steps import apply, contents, head, put, take
from flowfabric.testing.flows import flow_id, plan

TOGETHER = 3
SHORT_MS = 1_000
RETRIED = policy(retries=5)

Decide: TypeAlias = Callable[[int, Lease, int], Transition]
Spoil: TypeAlias = Callable[[Held | Seen], Held | Seen]


class Batch(NamedTuple):
    """Transitions of one shape for rows as they are now; the guard of one does not hold."""

    rows: list[Execution]
    transitions: list[Transition]
    bad: int

    def expected(self) -> list[Applied | Rejected]:
        return [
            Rejected(row.id, row) if place == self.bad else Applied(row.id)
            for place, row in enumerate(self.rows)
        ]

    def written(self) -> list[Execution]:
        """The rows after a call that writes all but the bad one."""
        return [
            row if place == self.bad else patched(row, transition.patch)
            for place, (row, transition) in enumerate(zip(self.rows, self.transitions, strict=True))
        ]


def must(transition: object) -> Transition:
    assert isinstance(transition, Transition)
    return transition


# By the holder of a lease; the number makes the values differ from row to row.
HELD: dict[str, Decide] = {
    "complete": lambda n, lease, now_ms: complete(lease, now_ms, b"%d" % n),
    "complete at other times": lambda n, lease, now_ms: complete(lease, now_ms + n, b"%d" % n),
    "fail": lambda n, lease, now_ms: fail(lease, now_ms, Failure(f"broke {n}", fatal=True)),
    "retry": lambda n, lease, now_ms: fail(lease, now_ms + n, Failure(f"broke {n}")),
    "delay": lambda n, lease, now_ms: delay(lease, now_ms, now_ms + 1_000 + n),
    "release": lambda n, lease, now_ms: release(lease, now_ms + n),
    "renew": lambda n, lease, now_ms: renew(lease, now_ms, TTL_MS + n),
    "progress": lambda n, lease, now_ms: progress(lease, now_ms, n, f"{n} done"),
}
GRANTED: dict[str, Decide] = {
    "start": lambda n, lease, now_ms: start(lease, now_ms + n),
}
# By an engine that read the row: from what state, and what.
SEEN: dict[str, tuple[str, Decide]] = {
    "cancel": (
        "waiting",
        lambda n, lease, now_ms: cancel(lease.head, now_ms, f"no {n}", source=Source.OPERATOR),
    ),
    "cancel for one reason": (
        "waiting",
        lambda _, lease, now_ms: cancel(lease.head, now_ms, "no", source=Source.OPERATOR),
    ),
    "cancel a running one": (
        "running",
        lambda n, lease, now_ms: cancel(lease.head, now_ms, f"no {n}", source=Source.OPERATOR),
    ),
    "change_priority": (
        "waiting",
        lambda n, lease, now_ms: change_priority(lease.head, now_ms, n + 1),
    ),
    "set_tags": (
        "waiting",
        lambda n, lease, now_ms: set_tags(lease.head, now_ms + n, {"a.b": f"{n}"}),
    ),
    "block": (
        "waiting",
        lambda n, lease, now_ms: block(lease.head, now_ms + n, Reason.WAITING_FOR_BUDGET),
    ),
    "unblock": ("blocked", lambda n, lease, now_ms: unblock(lease.head, now_ms + n)),
    "expire": (
        "waiting",
        lambda n, lease, now_ms: must(
            expire(lease.head, now_ms + n, ExpireReason.EXECUTION_DEADLINE)
        ),
    ),
    "revoke": (
        "running",
        lambda n, lease, now_ms: must(revoke(lease.head, now_ms + n, f"operator {n}")),
    ),
    "replay": ("ended", lambda n, lease, now_ms: replay(lease.head, now_ms + n)),
    "lose a lease": (
        "out of time",
        lambda n, lease, now_ms: on_due(lease.head, now_ms + n).transition,
    ),
}


def _held(**changed: object) -> Spoil:
    return lambda guard: msgspec.structs.replace(guard, **changed)


WRONG_LEASES: dict[str, Spoil] = {
    "an older epoch": lambda guard: _held(epoch=_epoch(guard) - 1)(guard),
    "a newer epoch": lambda guard: _held(epoch=_epoch(guard) + 1)(guard),
    "another token": _held(token="token-2"),  # noqa: S106
    "the other side of a start": lambda guard: _held(started=not _is_started(guard))(guard),
}
# Nothing is wrong with these guards: the lease is over.
OVER = ("by time", "by its holder")
WRONG_LOOKS: dict[str, Spoil] = {
    "an older revision": lambda guard: _held(rev=_rev(guard) - 1)(guard),
    "a newer revision": lambda guard: _held(rev=_rev(guard) + 1)(guard),
}


def _epoch(guard: Held | Seen) -> int:
    assert isinstance(guard, Held)
    return guard.epoch


def _is_started(guard: Held | Seen) -> bool:
    assert isinstance(guard, Held)
    return guard.started


def _rev(guard: Held | Seen) -> int:
    assert isinstance(guard, Seen)
    return guard.rev


async def held_batches(
    store: Store, clock: VirtualClock, decide: Decide, *, is_granted: bool
) -> list[Batch]:
    """One batch for each way in which a lease may not be the one that is held."""
    wrongs: list[str] = [*WRONG_LEASES, *OVER]
    count = TOGETHER * len(wrongs)
    await put(store, clock, *(order(number, policy=RETRIED) for number in range(count)))
    leases: list[Lease] = []
    for number in range(count):
        place, among = divmod(number, TOGETHER)
        ttl_ms = SHORT_MS if wrongs[place] == "by time" and among == place % TOGETHER else TTL_MS
        only = order(number).id
        taken = await take(store, clock, only=only, ttl_ms=ttl_ms, start=not is_granted)
        leases.extend(taken)
    clock.advance(SHORT_MS)
    batches: list[Batch] = []
    for place, wrong in enumerate(wrongs):
        some = leases[place * TOGETHER :][:TOGETHER]
        bad = place % TOGETHER
        if wrong == "by its holder":
            await apply(store, clock, release(some[bad], clock.now_ms()))
        made = [decide(n, lease, clock.now_ms()) for n, lease in enumerate(some)]
        batches.append(await _spoiled(store, made, bad, WRONG_LEASES.get(wrong)))
    return batches


async def seen_batches(
    store: Store, clock: VirtualClock, decide: Decide, *, state: str
) -> list[Batch]:
    """One batch for each way in which a row may not be the one that was seen."""
    count = TOGETHER * len(WRONG_LOOKS)
    rows = await put(store, clock, *(order(number, policy=RETRIED) for number in range(count)))
    await _bring_to(state, store, clock, rows)
    now = [Lease(await head(store, row.id)) for row in rows]
    batches: list[Batch] = []
    for place, spoil in enumerate(WRONG_LOOKS.values()):
        some = now[place * TOGETHER :][:TOGETHER]
        made = [decide(n, lease, clock.now_ms()) for n, lease in enumerate(some)]
        batches.append(await _spoiled(store, made, place % TOGETHER, spoil))
    return batches


async def _bring_to(
    state: str, store: Store, clock: VirtualClock, rows: Sequence[Execution]
) -> None:
    now_ms = clock.now_ms()
    match state:
        case "running" | "out of time":
            await take(store, clock, len(rows))
            clock.advance(TTL_MS if state == "out of time" else 0)
        case "blocked":
            reason = Reason.WAITING_FOR_BUDGET
            await apply(store, clock, *(block(row, now_ms, reason) for row in rows))
        case "ended":
            ended = (cancel(row, now_ms, "", source=Source.OPERATOR) for row in rows)
            await apply(store, clock, *ended)
        case _:
            assert state == "waiting"


async def _spoiled(
    store: Store, made: Sequence[Transition], bad: int, spoil: Spoil | None
) -> Batch:
    rows = [await head(store, transition.id) for transition in made]
    transitions = list(made)
    if spoil is not None:
        wrong = spoil(transitions[bad].guard)
        transitions[bad] = msgspec.structs.replace(transitions[bad], guard=wrong)
    return Batch(rows, transitions, bad)


async def rows_now(store: Store, batch: Batch) -> list[Execution]:
    return [await head(store, row.id) for row in batch.rows]


async def _apply(store: Store, clock: VirtualClock, batch: Batch) -> None:
    assert await store.apply(batch.transitions, clock.now_ms()) == batch.expected()
    assert await rows_now(store, batch) == batch.written()


async def _commit(store: Store, clock: VirtualClock, batch: Batch) -> None:
    before = await contents(store)
    assert not await store.commit(Changeset(batch.transitions), clock.now_ms())
    assert await contents(store) == before
    good = [each for place, each in enumerate(batch.transitions) if place != batch.bad]
    assert await store.commit(Changeset(good), clock.now_ms())
    assert await rows_now(store, batch) == batch.written()


async def _commit_each(store: Store, clock: VirtualClock, batch: Batch) -> None:
    changes = [Changeset([transition]) for transition in batch.transitions]
    answers = await store.commit_each(changes, clock.now_ms())
    assert answers == [place != batch.bad for place in range(len(changes))]
    assert await rows_now(store, batch) == batch.written()


WAYS = {"apply": _apply, "commit": _commit, "commit_each": _commit_each}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("verb", [*HELD, *GRANTED])
async def test_one_lease_that_is_not_held_is_refused_among_those_that_are(
    store: Store, clock: VirtualClock, verb: str, way: str
) -> None:
    decide = (HELD | GRANTED)[verb]
    for batch in await held_batches(store, clock, decide, is_granted=verb in GRANTED):
        await WAYS[way](store, clock, batch)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("verb", SEEN)
async def test_one_row_that_changed_is_refused_among_those_that_did_not(
    store: Store, clock: VirtualClock, verb: str, way: str
) -> None:
    state, decide = SEEN[verb]
    for batch in await seen_batches(store, clock, decide, state=state):
        await WAYS[way](store, clock, batch)


FLOWS = tuple(flow_id(number) for number in (1, 2, 3))
PATCHES: dict[str, Mapping[str, Callable[[int], int | str]]] = {
    "one column": {"busy_until_ms": lambda n: 1_000 + n},
    "the same value": {"failures": lambda _: 1},
    "several columns": {"failures": lambda n: n + 1, "parked": lambda n: f"reason {n}"},
}


@pytest.mark.parametrize("bad", range(len(FLOWS)))
@pytest.mark.parametrize("off_by", [-1, 1])
@pytest.mark.parametrize("patch", PATCHES)
async def test_one_flow_that_changed_is_refused_among_those_that_did_not(
    store: Store, clock: VirtualClock, patch: str, off_by: int, bad: int
) -> None:
    flows: list[Flow] = []
    for number, id in enumerate(FLOWS):
        await put_flow(store, clock, plan(f"{number}", "", flow=id))
        flows.append(await flow_of(store, id))
    values = [{name: of(n) for name, of in PATCHES[patch].items()} for n in range(len(FLOWS))]
    batch = [
        Changeset(flows=[FlowPatch(flow.id, flow.rev + (off_by if n == bad else 0), values[n])])
        for n, flow in enumerate(flows)
    ]

    answers = await store.commit_each(batch, clock.now_ms())

    assert answers == [n != bad for n in range(len(FLOWS))]
    for n, flow in enumerate(flows):
        written = msgspec.structs.replace(flow, **values[n], rev=flow.rev + 1)
        assert await flow_of(store, flow.id) == (flow if n == bad else written)


@pytest.mark.parametrize("bad", range(3))
async def test_one_lane_that_changed_is_refused_among_those_that_did_not(
    store: Store, clock: VirtualClock, bad: int
) -> None:
    states = (LaneState.PAUSED, LaneState.DRAINING, LaneState.DISABLED)
    names = ("a", "b", "c")
    made = [LaneChange(name, 0, LaneState.ACTIVE) for name in names]
    assert await store.commit(Changeset(lanes=made), clock.now_ms())
    before = await store.lanes("", 10)
    changes = [
        LaneChange(lane.name, lane.rev + (n == bad), state)
        for n, (lane, state) in enumerate(zip(before, states, strict=True))
    ]
    assert not await store.commit(Changeset(lanes=changes), clock.now_ms())
    assert await store.lanes("", 10) == before
    each = [Changeset(lanes=[change]) for change in changes]
    assert await store.commit_each(each, clock.now_ms()) == [n != bad for n in range(3)]
    after = [lane.state for lane in await store.lanes("", 10)]
    assert after == [LaneState.ACTIVE if n == bad else states[n] for n in range(3)]
