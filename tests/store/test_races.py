"""Named races over single executions, with real concurrency.

On SQLite every contender has a store of its own on one file, as every process would; on the memory
store they share one. What matters is never who wins, only that one does, that the other is told
the truth, and that nothing is lost between them.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest

from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import complete, progress, renew
from flowfabric.core.model import Execution, Feed, Lease, Query, Want, Writer
from flowfabric.core.operator import (
    Source,
    block,
    cancel,
    change_priority,
    observed,
    replay,
    unblock,
)
from flowfabric.core.refusal import refusal_of_lease
from flowfabric.core.settle import facts_of, settle
from flowfabric.core.states import Reason, State
from flowfabric.core.timers import on_due
from flowfabric.core.transition import Applied, Changeset, Rejected, Transition
from flowfabric.errors import (
    ClockSkew,
    CursorExpired,
    ExecutionNotActive,
    IllegalTransition,
    Refused,
    StoreUnavailable,
)
from flowfabric.store import Store, open_store
from flowfabric.store.sqlite import SqliteStore
from flowfabric.testing import Fault, FaultyStore, Kind, Verb, VirtualClock
from flowfabric.testing.build import TTL_MS, ask, execution_id, order, policy, submissions
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
from tests.conftest import Size, store_url
from tests.store.children import Job, run_together

CONTENDERS = 8


@pytest.fixture
async def contenders(
    store: Store, store_kind: str, clock: VirtualClock, tmp_path: Path
) -> AsyncIterator[list[Store]]:
    """Each sees the same executions."""
    if store_kind == "memory":
        yield [store] * CONTENDERS
        return
    url = store_url(store_kind, tmp_path / "store.db")
    others = [open_store(url, clock=clock) for _ in range(CONTENDERS - 1)]
    for other in others:
        await other.migrate()
    yield [store, *others]
    for other in others:
        await other.close()


async def together(*works: Callable[[], Awaitable[object]]) -> None:
    """Each work in a thread of its own, begun at the same moment."""
    await asyncio.to_thread(in_threads, len(works), lambda number: works[number]())


Decision = Callable[[Execution, int], Transition]


async def decide(store: Store, clock: VirtualClock, id: ExecutionId, decision: Decision) -> None:
    """Look, decide, commit; again when somebody was faster or it cannot be decided yet."""
    while True:
        row = await head(store, id)
        try:
            transition = decision(row, clock.now_ms())
        except Refused:
            await asyncio.sleep(0)
            continue
        if await store.commit(Changeset([transition]), clock.now_ms()):
            return


def paused(row: Execution, now_ms: int) -> Transition:
    return block(row, now_ms, Reason.PAUSED_BY_OPERATOR)


def without_budget(row: Execution, now_ms: int) -> Transition:
    return block(row, now_ms, Reason.WAITING_FOR_BUDGET)


def released(row: Execution, now_ms: int) -> Transition:
    return unblock(row, now_ms)


def waits_for_others(row: Execution, now_ms: int, *, is_open: bool = True) -> Transition:
    """What a dispatcher writes while upstreams are open, and when the last one has ended."""
    facts = msgspec.structs.replace(facts_of(row), deps_open=is_open)
    patch = settle(facts, now_ms).patch(deps_open=is_open, updated_ms=now_ms)
    return Transition(row.id, observed(row), Writer.ENGINE, patch)


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


async def test_no_row_is_claimed_twice_by_processes(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "store.db"), synchronous="NORMAL")
    await store.migrate()
    now_ms = await store.now()
    await store.insert(submissions([order(n) for n in range(1_000)], now_ms), now_ms)
    jobs = [Job("claim_until_empty", number, 5) for number in range(CONTENDERS)]
    answers = await asyncio.to_thread(run_together, tmp_path / "store.db", jobs)
    assert Counter(id for answer in answers for id in answer) == {
        execution_id(n): 1 for n in range(1_000)
    }
    await store.close()


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
    clock.set(lease.until_ms - 1)
    await apply(store, clock, renew(lease, clock.now_ms(), TTL_MS))
    clock.advance(1)
    (row,) = (await store.due(clock.now_ms(), 10)).rows
    assert isinstance(row, Execution)
    early = on_due(row, clock.now_ms())
    assert (early.duty, row.due_ms) == (None, lease.until_ms)
    await apply(store, clock, early.transition)
    assert (await head(store, lease.id)).due_ms == clock.now_ms() - 1 + TTL_MS
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
    refused: list[ClockSkew] = []

    async def wrong_timekeeper() -> None:
        wrong_ms = now_ms + off_ms
        for row in (await contenders[0].due(now_ms + 5_000, ALL)).rows:
            assert isinstance(row, Execution)
            verdict = on_due(row, now_ms + 5_000).transition
            with pytest.raises(ClockSkew) as skew:
                await contenders[0].apply([verdict], wrong_ms)
            refused.append(skew.value)

    async def right_worker() -> None:
        for lease in leases:
            done = complete(lease, now_ms, b"")
            assert await contenders[1].apply([done], now_ms) == [Applied(lease.id)]

    await together(wrong_timekeeper, right_worker)
    rows = await store.find(Query(limit=ALL))
    assert {row.state for row in rows} == {State.COMPLETED}
    assert {skew.store_now_ms for skew in refused} <= {now_ms}


async def test_pausing_a_blocked_child_does_not_let_it_run_early(
    store: Store, clock: VirtualClock, contenders: list[Store]
) -> None:
    now_ms = clock.now_ms()
    child = (await put(store, clock, order(0)))[0]
    await apply(store, clock, waits_for_others(child, now_ms))
    over = threading.Event()
    leases: list[Lease] = []

    async def pause_and_go_on() -> None:
        for _ in range(30):
            await decide(contenders[0], clock, child.id, paused)
            await decide(contenders[0], clock, child.id, released)
        await decide(contenders[0], clock, child.id, partial(waits_for_others, is_open=False))
        over.set()

    async def claim_meanwhile() -> None:
        while not leases:
            is_last = over.is_set()
            leases.extend(await contenders[1].claim(ask(now_ms, token="token-2")))
            assert leases or not is_last

    await together(pause_and_go_on, claim_meanwhile)
    # A claim does not touch these facts: they are as they were when the row was taken.
    assert [(lease.head.paused, lease.head.deps_open) for lease in leases] == [(False, False)]


async def test_a_replay_decided_on_an_earlier_end_is_refused(
    store: Store, clock: VirtualClock
) -> None:
    """The row looks the same again in everything but its revision."""
    now_ms = clock.now_ms()
    row = (await put(store, clock, order(0)))[0]
    await apply(store, clock, cancel(row, now_ms, "", source=Source.OPERATOR))
    first_end = await head(store, row.id)
    await apply(store, clock, replay(first_end, now_ms))
    again = await head(store, row.id)
    await apply(store, clock, cancel(again, now_ms, "", source=Source.OPERATOR))
    second_end = await head(store, row.id)
    same = ("state", "epoch", "due_ms", "attempt", "updated_ms")
    assert [getattr(second_end, name) for name in same] == [
        getattr(first_end, name) for name in same
    ]

    assert not await store.commit(Changeset([replay(first_end, now_ms)]), now_ms)

    assert (await head(store, row.id)).replay_count == 1


async def test_every_replay_that_was_done_is_counted(
    store: Store, clock: VirtualClock, contenders: list[Store]
) -> None:
    now_ms = clock.now_ms()
    many = policy(replays=1_000_000)
    row = (await put(store, clock, order(0, policy=many)))[0]
    done: list[int] = []

    async def replay_often(number: int) -> None:
        for _ in range(25):
            seen = await head(contenders[number], row.id)
            if seen.state is State.CANCELLED:
                changes = Changeset([replay(seen, now_ms)])
            else:
                changes = Changeset([cancel(seen, now_ms, "", source=Source.OPERATOR)])
            if await contenders[number].commit(changes, now_ms):
                done.extend([number] * (seen.state is State.CANCELLED))

    await asyncio.to_thread(in_threads, 4, replay_often)
    assert (await head(store, row.id)).replay_count == len(done) > 0


async def test_a_change_of_priority_is_not_lost_to_a_sweeper(
    store: Store, clock: VirtualClock, contenders: list[Store]
) -> None:
    row = (await put(store, clock, order(0)))[0]

    async def change_often() -> None:
        for wanted in range(1, 41):
            await decide(contenders[0], clock, row.id, partial(change_priority, priority=wanted))

    async def block_often() -> None:
        for _ in range(20):
            await decide(contenders[1], clock, row.id, without_budget)
            await decide(contenders[1], clock, row.id, released)

    await together(change_often, block_often)
    assert (await head(store, row.id)).priority == 40
    changes = [e.detail for e in await store.tail(Feed(limit=ALL)) if e.kind == "priority_changed"]
    assert [(change["from"], change["to"]) for change in changes] == [
        (number, number + 1) for number in range(40)
    ]


async def test_a_patch_that_does_not_name_the_priority_leaves_it(
    store: Store, clock: VirtualClock
) -> None:
    """Decided before the change of priority, refused after it, decided again and written."""
    now_ms = clock.now_ms()
    seen = (await put(store, clock, order(0, priority=5)))[0]
    sweeper = without_budget(seen, now_ms)
    await apply(store, clock, change_priority(seen, now_ms, 9))
    assert not await store.commit(Changeset([sweeper]), now_ms)
    again = without_budget(await head(store, seen.id), now_ms)
    assert await store.commit(Changeset([again]), now_ms)
    row = await head(store, seen.id)
    assert (row.state, row.priority) == (State.BLOCKED_BUDGET, 9)


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
        over.set()

    async def look() -> None:
        while not over.is_set():
            found = (await contenders[1].load(Want(ids=[id], attempts=True, tags=True)))[0]
            assert found is not None
            ended = found.head.attempt + (found.head.state is not State.ACTIVE)
            if [a.attempt for a in found.attempts] != list(range(ended)):
                torn.append(found.head)

    await together(run_again_and_again, look)
    assert torn == []


@pytest.mark.lab
async def test_six_processes_share_a_file_and_nobody_starves(tmp_path: Path, size: Size) -> None:
    seconds = 10 if size == "long" else 2
    path = tmp_path / "store.db"
    jobs = [Job("work_for", number, seconds) for number in range(6)]
    answers = await asyncio.to_thread(run_together, path, jobs)
    cycles = [int(answer[0]) for answer in answers]
    sys.stdout.write(f"six processes, {seconds} s: {cycles} cycles\n")
    store = SqliteStore(str(path))
    await store.migrate()
    done = await store.find(Query(states=(State.COMPLETED,), limit=ALL))
    assert Counter(row.lane for row in done) == {f"lane-{n}": cycles[n] for n in range(6)}
    await store.close()
    # Waiting in SQLite's own way leaves some with nothing at all.
    assert min(cycles) * 6 >= sum(cycles) / 10
