"""A lease is a name: its id, epoch and token. Nothing else in a caller's copy of it decides
anything that the stored row can decide."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum

import msgspec
import pytest

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution, Lease
from flowfabric.core.states import State
from flowfabric.engine.handed_out import KEPT_MAX, HandedOut
from flowfabric.errors import FlowFabricError
from flowfabric.store import Store
from flowfabric.testing.build import TTL_MS, order, policy, submissions
from flowfabric.testing.clock import START_MS, VirtualClock
from flowfabric.testing.faults import FaultyStore, Verb
from tests.engine.desk import BROKEN, Desk, forged

# The name of a lease; all other columns are forged, one at a time.
NAME = {"id", "epoch", "lease_token"}
COLUMNS = [name for name in Execution.__struct_fields__ if name not in NAME]
# What two executions that went the same way differ in.
OWN = {"id", "lease_token", "rev"}
FAR_MS = 10**12


def another(value: object) -> object:
    """A value of the same kind that says something else."""
    match value:
        case Enum():
            return next(each for each in type(value) if each is not value)
        case bool():
            return not value
        case int():
            return value + 7
        case None:
            return FAR_MS
        case _:
            return f"{value}forged"


Say = Callable[[Desk, Lease], Awaitable[object]]


async def _renew(desk: Desk, lease: Lease) -> None:
    (answer,) = await desk.engine.renew([lease], TTL_MS)
    if answer.error is not None:
        raise answer.error


STARTED: dict[str, Say] = {
    "complete": lambda desk, lease: desk.engine.complete(lease, b"1"),
    "fail": lambda desk, lease: desk.engine.fail(lease, BROKEN),
    "delay": lambda desk, lease: desk.engine.delay(lease, desk.clock.now_ms() + 1_000),
    "release": lambda desk, lease: desk.engine.release(lease),
    "renew": _renew,
    "progress": lambda desk, lease: desk.engine.progress(lease, 50),
}
GRANTED: dict[str, Say] = {
    "start": lambda desk, lease: desk.engine.start(lease),
    "release": lambda desk, lease: desk.engine.release(lease),
    "renew": _renew,
}


async def second_attempt(desk: Desk, number: int, *, start: bool) -> Lease:
    """The lease of one that was tried before and may not be tried again."""
    terms = policy(retries=1, pause_ms=0)
    deadline_ms = desk.clock.now_ms() + 3_600_000
    first = await desk.running(order(number, policy=terms, deadline_ms=deadline_ms))
    await desk.engine.fail(first, BROKEN)
    return await desk.take(first.id, start=start)


async def left(desk: Desk, id: ExecutionId) -> tuple[object, ...]:
    """All that is to be seen of an execution, but for its own names."""
    row = msgspec.structs.asdict(await desk.head(id))
    attempts = [msgspec.structs.asdict(each) for each in await desk.attempts(id)]
    for each in attempts:
        del each["execution"]
    lines = [(event.kind, event.state, event.attempt) for event in await desk.events(id)]
    return {name: row[name] for name in row if name not in OWN}, attempts, lines


@pytest.mark.parametrize(
    ("verbs", "verb"),
    [(verbs, verb) for verbs in (STARTED, GRANTED) for verb in verbs],
    ids=[*STARTED, *(f"granted {verb}" for verb in GRANTED)],
)
async def test_no_column_of_a_callers_lease_decides_anything(
    desk: Desk, verbs: dict[str, Say], verb: str
) -> None:
    honest = await second_attempt(desk, 0, start=verbs is STARTED)
    leases = {
        column: await second_attempt(desk, number, start=verbs is STARTED)
        for number, column in enumerate(COLUMNS, 1)
    }
    before = {column: await left(desk, lease.id) for column, lease in leases.items()}
    await verbs[verb](desk, honest)
    wanted = await left(desk, honest.id)
    for column, lease in leases.items():
        lie = forged(lease, **{column: another(getattr(lease.head, column))})
        try:
            await verbs[verb](desk, lie)
        except FlowFabricError:
            assert await left(desk, lease.id) == before[column], column
        else:
            assert await left(desk, lease.id) == wanted, column


async def test_a_forged_count_gets_nobody_past_the_limit_of_retries(desk: Desk) -> None:
    lease = await second_attempt(desk, 0, start=True)
    finished = await desk.engine.fail(forged(lease, retry_count=0), BROKEN)
    assert finished.state is State.FAILED


async def test_a_forged_end_makes_no_lease_longer(desk: Desk) -> None:
    lease = await desk.running()
    (answer,) = await desk.engine.renew([forged(lease, lease_until_ms=FAR_MS * 10)], TTL_MS)
    assert answer.lease.until_ms == desk.clock.now_ms() + TTL_MS
    assert (await desk.head(lease.id)).lease_until_ms == answer.lease.until_ms


async def test_only_a_lease_that_is_not_known_is_read(store: Store, clock: VirtualClock) -> None:
    watched = FaultyStore(store)
    desk = Desk(watched, clock)
    await desk.engine.open()
    grant = await desk.take(await desk.submit(order(0)), start=False)
    begun = await desk.engine.start(grant)
    (renewal,) = await desk.engine.renew([begun], TTL_MS)
    (renewal,) = await desk.engine.renew([renewal.lease], TTL_MS)
    await desk.engine.delay(begun, clock.now_ms())
    await desk.engine.complete(await desk.take(begun.id), b"1")
    assert watched.calls[Verb.LOAD] == 0
    await desk.engine.complete(forged(await desk.running(order(1))), b"1")
    assert watched.calls[Verb.LOAD] == 1


def test_the_leases_that_are_known_are_bounded() -> None:
    known = HandedOut()
    leases = [lease_of(n) for n in range(KEPT_MAX + 1)]
    known.add(leases)
    assert known.strange([leases[0], leases[1], leases[-1]]) == [leases[0]]


def lease_of(number: int) -> Lease:
    return Lease(submissions([order(number)], START_MS)[0].execution)
