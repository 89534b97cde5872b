"""The verbs of holders, overseers and latecomers, each with what must be true of its answer.

The one rule behind most of them: whoever holds a live lease is served, and anybody else changes
nothing, whatever the answer is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import Failure
from flowfabric.core.model import Execution, Lease, Loaded
from flowfabric.core.operator import Source
from flowfabric.core.policy import parse_policy
from flowfabric.core.states import RUNNABLE, State
from flowfabric.core.transition import Applied, Changeset, Transition
from flowfabric.engine.outcomes import Completed, Delayed, Failed, Outcome, Released
from flowfabric.errors import FlowFabricError
from flowfabric.testing.build import TTL_MS
from flowfabric.testing.driver import ANSWERS, Driver, require
from flowfabric.testing.picking import Pick, pick_lease

T = TypeVar("T")

# Whom a verb is for: those who have begun, those who have not, or both.
Phase = bool | None

NOTHING = "nothing to do"


async def hold(
    driver: Driver, lease: Lease, call: Callable[[Lease], Awaitable[T]], *, phase: Phase = True
) -> T | FlowFabricError:
    """A verb of whoever holds the lease; a lease that it answers is kept."""
    is_served = driver.is_live(lease) and phase in (None, lease.started)
    before = driver.picture
    told = await driver.do(lambda: call(lease))
    if is_served:
        require(not isinstance(told, FlowFabricError), f"the holder hears {told!r}")
        written = driver.head(lease.id).rev - before.loaded[lease.id].head.rev
        require(written == 1, f"the holder wrote {written} times")
    else:
        require(before.loaded == driver.picture.loaded, f"{lease} holds nothing and wrote")
    if isinstance(told, Lease):
        driver.leases.append(told)
    return told


async def renew(driver: Driver, pick: Pick, ttl_ms: int) -> object:
    """One at a time, with any lease that was ever given."""
    lease = await pick_lease(driver, pick, started=None)
    if lease is None:
        return NOTHING

    async def renewed(held: Lease) -> Lease:
        answer = (await driver.engine.renew([held], ttl_ms))[0]
        if answer.error is not None:
            raise answer.error
        return answer.lease

    told = await hold(driver, lease, renewed, phase=None)
    if isinstance(told, Lease):
        stored_ms = driver.head(lease.id).lease_until_ms
        require(told.until_ms == stored_ms, f"renewed until {told.until_ms}, stored {stored_ms}")
    return told


async def complete(driver: Driver, pick: Pick, result: bytes) -> object:
    lease = await pick_lease(driver, pick)
    if lease is None:
        return NOTHING
    is_served = driver.is_live(lease) and lease.started
    told = await hold(driver, lease, lambda held: driver.engine.complete(held, result))
    end = driver.picture.ends[lease.id]
    if not isinstance(told, FlowFabricError):
        require(end.state is State.COMPLETED, f"completed and {end.state}")
        require(not is_served or end.result == result, f"{result!r} became {end.result!r}")
    return told


async def fail(driver: Driver, pick: Pick, failure: Failure) -> object:
    """What its policy still allows is tried again, and nothing else is."""
    lease = await pick_lease(driver, pick)
    if lease is None:
        return NOTHING
    is_served = driver.is_live(lease) and lease.started
    is_last = _is_last(driver.head(lease.id), failure)
    told = await hold(driver, lease, lambda held: driver.engine.fail(held, failure))
    state = driver.head(lease.id).state
    if is_served:
        require((state is State.FAILED) == is_last, f"{failure} and {state}")
    return told


def _is_last(row: Execution, failure: Failure) -> bool:
    retry = parse_policy(row.policy).retry_policy
    if failure.fatal or retry is None or row.retry_count >= retry.max_retries:
        return True
    named = retry.retryable_categories
    return bool(named) and failure.category not in named


async def renew_many(driver: Driver, picks: Sequence[Pick]) -> object:
    found = [await pick_lease(driver, pick, started=None) for pick in picks]
    leases = [lease for lease in found if lease is not None]
    told = await _hold_many(driver, leases, lambda: driver.engine.renew(leases, TTL_MS))
    if not isinstance(told, FlowFabricError):
        driver.leases += [answer.lease for answer in told if answer.error is None]
    return told


async def finish_many(driver: Driver, picks: Sequence[Pick], until_ms: int) -> object:
    """Several outcomes in one call, also several of one lease: the first of them counts."""
    found = [await pick_lease(driver, pick) for pick in picks]
    leases = [lease for lease in found if lease is not None]
    outcomes = [_outcome(lease, kind, until_ms) for kind, lease in enumerate(leases)]
    fitting = [said.lease for said in outcomes if said.lease.started or isinstance(said, Released)]
    return await _hold_many(driver, fitting, lambda: driver.engine.finish(outcomes))


def _outcome(lease: Lease, kind: int, until_ms: int) -> Outcome:
    outcomes: tuple[Outcome, ...] = (
        Completed(lease, b"of many"),
        Failed(lease, Failure("broke")),
        Delayed(lease, until_ms),
        Released(lease),
    )
    return outcomes[kind % len(outcomes)]


async def _hold_many(
    driver: Driver, fitting: Sequence[Lease], call: Callable[[], Awaitable[T]]
) -> T | FlowFabricError:
    """One call about many leases: a fitting one is served if it is alive, no other is."""
    before = driver.picture
    live = {lease.id for lease in fitting if driver.is_live(lease)}
    told = await driver.do(call, writes=len(fitting))
    for id, loaded in driver.picture.loaded.items():
        is_same = loaded == before.loaded[id]
        require(is_same != (id in live), f"{id} changed: {not is_same}, after {told}")
    return told


async def cancel_own(driver: Driver, pick: Pick, request: str) -> object:
    """By the holder; whoever shows a dead lease can cancel only what nobody holds."""
    lease = await pick_lease(driver, pick)
    if lease is None:
        return NOTHING
    row = driver.head(lease.id)
    may = driver.is_live(lease) or row.state in RUNNABLE
    source = Source.LEASE_HOLDER
    told = await driver.do(
        lambda: driver.engine.cancel(lease.id, source=source, lease=lease, request=request)
    )
    after = driver.head(lease.id)
    require((after != row) == may, f"{lease} cancelled {row}")
    require(not may or after.state is State.CANCELLED, f"cancelled and {after.state}")
    return told


async def oversee(
    driver: Driver,
    id: ExecutionId,
    call: Callable[[ExecutionId], Awaitable[object]],
    then: Callable[[Execution, Loaded], bool],
) -> object:
    """A verb of somebody who holds nothing; unless it is refused, `then` is true."""
    was = driver.picture.row(id)
    told = await driver.do(lambda: call(id))
    if was is not None and not isinstance(told, FlowFabricError):
        now = driver.picture.loaded[id]
        require(then(was, now), f"answered {told!r}, and {was} became {now}")
    return told


async def adopt(driver: Driver, number: int) -> object:
    """The lease as it is stored, if there is a live one."""
    id = driver.id(number, (State.ACTIVE,))
    lease = await driver.do(lambda: driver.engine.adopt(id), writes=0)
    if isinstance(lease, Lease):
        require(driver.is_live(lease), f"{lease} was adopted and is dead")
        driver.leases.append(lease)
    return lease


async def decide_late(
    driver: Driver, number: int, decide: Callable[[Execution, int], object], *, whole: bool
) -> object:
    """Write a decision about a row as it was once; it counts only if nothing has changed."""
    row = driver.observed[-1 - number % len(driver.observed)]
    now_ms = driver.clock.now_ms()
    try:
        decision = decide(row, now_ms)
    except ANSWERS:
        return NOTHING
    if not isinstance(decision, Transition):
        return NOTHING
    is_same = row == driver.picture.row(row.id)

    async def write() -> bool:
        if whole:
            return await driver.store.commit(Changeset([decision]), now_ms)
        replies = await driver.store.apply([decision], now_ms)
        return isinstance(replies[0], Applied)

    done = await driver.do(write, writes=1 if is_same else 0)
    require(done is is_same, f"a decision about rev {row.rev} was written: {done}")
    return is_same
