"""Named races over single executions, with real concurrency.

On SQLite every contender has a store of its own on one file, as every process would; on the memory
store they share one. What matters is never who wins, only that one does, that the other is told
the truth, and that nothing is lost between them.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest

from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import complete, progress, renew
from flowfabric.core.model import Execution, Feed, Lease, Query, Want
from flowfabric.core.operator import (
    Source,
    cancel,
    replay,
)
from flowfabric.core.refusal import refusal_of_lease
from flowfabric.core.states import State
from flowfabric.core.timers import on_due
from flowfabric.core.transition import Applied, Changeset, Rejected
from flowfabric.errors import (
    ClockSkew,
    CursorExpired,
    ExecutionNotActive,
    IllegalTransition,
    StoreUnavailable,
)
from flowfabric.store import Store
from flowfabric.store.sqlite import SqliteStore
from flowfabric.testing import Fault, FaultyStore, Kind, Verb, VirtualClock
from flowfabric.testing.build import TTL_MS, ask, execution_id, order, policy
from flowfabric.testing.conformance.steps import (
    ALL,
    apply,
    contents,
    head,
    in_threads,
    put,
    put_and_take,
    take,
)
from tests.store.racing import (
    CONTENDERS,
    together,
    until,
)


async def test_no_row_is_claimed_twice(
    store: Store, clock: VirtualClock, contenders: list[Store]
) -> None:
    await put(store, clock, *(order(n, priority=n % 5) for n in range(1_000)))
    claimed: list[ExecutionId] = []

    async def claim_all(number: int) -> None:
        rounds = 0
        while leases := await contenders[number].claim(
            ask(clock.now_ms(), limit=7, token=f"token-{number}-{rounds}")
        ):
            rounds += 1
            claimed.extend(lease.id for lease in leases)

    await asyncio.to_thread(in_threads, CONTENDERS, claim_all)
    assert Counter(claimed) == {execution_id(n): 1 for n in range(1_000)}
    rows = await store.find(Query(limit=ALL))
    assert {(row.state, row.epoch, row.rev) for row in rows} == {(State.ACTIVE, 1, 2)}


async def test_cancel_against_complete_shows_the_row_that_won(
    store: Store, clock: VirtualClock, contenders: list[Store]
) -> None:
    await put(store, clock, *(order(n) for n in range(120)))
    leases = await take(store, clock, 120)
    now_ms = clock.now_ms()
    replies: dict[ExecutionId, Applied | Rejected] = {}
    cancelled: dict[ExecutionId, bool] = {}

    async def complete_all() -> None:
        for start in range(0, 120, 3):
            batch = [complete(lease, now_ms, b"r") for lease in leases[start : start + 3]]
            for reply in await contenders[0].apply(batch, now_ms):
                replies[reply.id] = reply

    async def cancel_all() -> None:
        for lease in leases:
            ended = cancel(lease.head, now_ms, "no", source=Source.OPERATOR)
            cancelled[lease.id] = await contenders[1].commit(Changeset([ended]), now_ms)

    await together(complete_all, cancel_all)
    for lease in leases:
        reply, row = replies[lease.id], await head(store, lease.id)
        assert isinstance(reply, Applied) is not cancelled[lease.id]
        if isinstance(reply, Applied):
            assert (row.state, row.epoch) == (State.COMPLETED, 1)
            continue
        assert reply.current == row
        assert (row.state, row.epoch) == (State.CANCELLED, 2)
        error = refusal_of_lease(reply.current, lease, now_ms)
        assert isinstance(error, ExecutionNotActive)
        assert error.details["terminal_outcome"] == "cancelled"


async def test_complete_in_the_middle_of_a_batch_of_cancelled_ones(
    store: Store, clock: VirtualClock, contenders: list[Store]
) -> None:
    """The batch as a whole meets cancels at any point of it; each answer is about its own row."""
    await put(store, clock, *(order(n) for n in range(200)))
    leases = await take(store, clock, 200)
    now_ms = clock.now_ms()
    replies: list[Applied | Rejected] = []

    async def complete_all() -> None:
        replies.extend(
            await contenders[0].apply([complete(lease, now_ms, b"r") for lease in leases], now_ms)
        )

    async def cancel_some() -> None:
        for lease in leases[::20]:
            ended = cancel(lease.head, now_ms, "no", source=Source.OPERATOR)
            await contenders[1].apply([ended], now_ms)

    await together(complete_all, cancel_some)
    for lease, reply in zip(leases, replies, strict=True):
        row = await head(store, lease.id)
        won = row.state is State.COMPLETED
        assert reply == (Applied(lease.id) if won else Rejected(lease.id, row))


async def test_a_renewal_and_a_timer_do_not_both_win(
    store: Store, clock: VirtualClock, contenders: list[Store]
) -> None:
    """The timekeeper's clock is a little fast: it finds leases over that can still be renewed."""
    await put(store, clock, *(order(n) for n in range(100)))
    leases = await take(store, clock, 100)
    now_ms = clock.set(leases[0].until_ms - 100)
    fast_ms = leases[0].until_ms + 100
    due = [row for row in (await store.due(fast_ms, ALL)).rows if isinstance(row, Execution)]
    renewed: dict[ExecutionId, bool] = {}
    lost: dict[ExecutionId, bool] = {}

    async def renew_all() -> None:
        for lease in leases:
            reply = await contenders[0].apply([renew(lease, now_ms, TTL_MS)], now_ms, urgent=True)
            renewed[lease.id] = isinstance(reply[0], Applied)

    async def expire_all() -> None:
        for row in reversed(due):
            reply = await contenders[1].apply([on_due(row, fast_ms).transition], fast_ms)
            lost[row.id] = isinstance(reply[0], Applied)

    await together(renew_all, expire_all)
    assert len(due) == 100
    for lease in leases:
        row = await head(store, lease.id)
        assert renewed[lease.id] is not lost[lease.id]
        assert row.state is (State.ACTIVE if renewed[lease.id] else State.ORPHANED)


async def test_a_timer_left_early_by_a_renewal_takes_no_healthy_lease(
    store: Store, clock: VirtualClock
) -> None:
    lease = await put_and_take(store, clock, order(0))
    clock.advance(TTL_MS // 2)
    await apply(store, clock, renew(lease, clock.now_ms(), TTL_MS))
    clock.set(lease.until_ms)
    (row,) = (await store.due(clock.now_ms(), 10)).rows
    assert isinstance(row, Execution)
    early = on_due(row, clock.now_ms())
    assert (early.duty, row.due_ms) == (None, lease.until_ms)
    await apply(store, clock, early.transition)
    assert (await head(store, lease.id)).due_ms == clock.now_ms() + TTL_MS // 2
    await apply(store, clock, complete(lease, clock.now_ms(), b""))


async def test_a_worker_from_before_a_restore_is_fenced_off(
    tmp_path: Path, clock: VirtualClock
) -> None:
    """Epochs repeat after a fail-over, so the token must be part of the fence."""
    path, earlier = tmp_path / "store.db", tmp_path / "earlier.db"
    store = SqliteStore(str(path), clock=clock)
    await store.migrate()
    await put(store, clock, order(0))
    await store.close()
    shutil.copyfile(path, earlier)

    await store.migrate()
    first = (await take(store, clock, token="token-of-first"))[0]
    seen = (await store.tail(Feed()))[-1].cursor
    await store.close()
    shutil.copyfile(earlier, path)

    await store.migrate()
    with pytest.raises(CursorExpired):
        await store.tail(Feed(after=seen))
    second = (await take(store, clock, token="token-of-second"))[0]
    assert second.epoch == first.epoch
    now_ms = clock.now_ms()
    for late in (complete(first, now_ms, b"first"), renew(first, now_ms, TTL_MS)):
        assert await store.apply([late], now_ms) == [Rejected(first.id, second.head)]
    assert await store.apply([complete(second, now_ms, b"second")], now_ms) == [Applied(first.id)]
    ended = (await store.endings([first.id]))[0]
    assert ended is not None
    assert ended.result == b"second"
    await store.close()


async def test_claims_whose_replies_were_lost_leave_nothing_behind(
    store: Store, clock: VirtualClock, contenders: list[Store]
) -> None:
    await put(store, clock, *(order(n) for n in range(200)))
    held: list[Lease] = []

    async def claim_all(number: int) -> None:
        # Every second reply is lost: some before anything was done, some after.
        kinds = (Kind.TIMEOUT, Kind.BEFORE, Kind.AFTER)
        plan = [Fault(Verb.CLAIM, 2 * n + 1, kinds[n % 3]) for n in range(500)]
        faulty = FaultyStore(contenders[number], plan)
        for round_number in range(500):
            leases = await claim_until_answered(faulty, clock, f"token-{number}-{round_number}")
            held.extend(leases)
            if not leases:
                return

    await asyncio.to_thread(in_threads, 4, claim_all)
    assert Counter(lease.id for lease in held) == {execution_id(n): 1 for n in range(200)}
    tokens = {row.id: row.lease_token for row in await store.find(Query(limit=ALL))}
    assert tokens == {lease.id: lease.token for lease in held}


async def claim_until_answered(store: Store, clock: VirtualClock, token: str) -> list[Lease]:
    repeated = False
    while True:
        try:
            return await store.claim(ask(clock.now_ms(), limit=3, token=token, repeated=repeated))
        except (TimeoutError, StoreUnavailable):
            repeated = True


async def test_two_changes_of_one_record_in_one_call_are_not_both_reported_done(
    store: Store, clock: VirtualClock
) -> None:
    lease = await put_and_take(store, clock, order(0))
    now_ms = clock.now_ms()
    before = await contents(store)
    both = [progress(lease, now_ms, 99, None), complete(lease, now_ms, b"")]
    with pytest.raises(IllegalTransition):
        await store.apply(both, now_ms)
    with pytest.raises(IllegalTransition):
        await store.commit(Changeset(both), now_ms)
    assert await contents(store) == before


@pytest.mark.parametrize("off_ms", [-5_000, 5_000])
async def test_a_process_whose_clock_is_off_harms_no_other(
    store: Store, clock: VirtualClock, contenders: list[Store], off_ms: int
) -> None:
    """A fast timekeeper would take healthy leases and end executions before their deadline."""
    now_ms = clock.now_ms()
    await put(store, clock, *(order(n, deadline_ms=now_ms + 4_000) for n in range(30)))
    leases = await take(store, clock, 30)
    wrong_ms = now_ms + off_ms
    due = (await store.due(now_ms + 5_000, ALL)).rows
    rows = [row for row in due if isinstance(row, Execution)]
    verdicts = [on_due(row, now_ms + 5_000).transition for row in rows]
    refused: list[int | None] = []

    async def judge_with_the_wrong_clock() -> None:
        for verdict in verdicts:
            with pytest.raises(ClockSkew) as skew:
                await contenders[0].apply([verdict], wrong_ms)
            refused.append(skew.value.store_now_ms)

    async def work() -> None:
        for lease in leases:
            done = complete(lease, now_ms, b"")
            assert await contenders[1].apply([done], now_ms) == [Applied(lease.id)]

    await together(judge_with_the_wrong_clock, work)
    assert {row.state for row in await store.find(Query(limit=ALL))} == {State.COMPLETED}
    assert refused == [now_ms] * 30


async def test_a_look_at_an_execution_is_of_one_moment(
    store: Store, clock: VirtualClock, contenders: list[Store]
) -> None:
    """Head and attempts come from several statements; a replay between them must not show."""
    now_ms = clock.now_ms()
    id = (await put(store, clock, order(0, policy=policy(replays=1_000_000))))[0].id
    over = threading.Event()
    torn: list[Execution] = []

    async def run_again_and_again() -> None:
        for number in range(60):
            lease = (await take(contenders[0], clock, token=f"token-{number}"))[0]
            await apply(contenders[0], clock, complete(lease, now_ms, b"%d" % number))
            await apply(contenders[0], clock, replay(await head(contenders[0], id), now_ms))

    async def look() -> None:
        while not over.is_set():
            found = (await contenders[1].load(Want(ids=[id], attempts=True, tags=True)))[0]
            assert found is not None
            ended = found.head.attempt + (found.head.state is not State.ACTIVE)
            if [a.attempt for a in found.attempts] != list(range(ended)):
                torn.append(found.head)

    await together(until(over, run_again_and_again), look)
    assert torn == []
