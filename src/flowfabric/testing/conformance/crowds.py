"""Many at once: large batches, many callers in one loop, and several loops in several threads."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import complete
from flowfabric.core.model import Feed, Query
from flowfabric.core.operator import Source, cancel
from flowfabric.core.states import State
from flowfabric.core.transition import Applied, Changeset
from flowfabric.store.protocol import Store
from flowfabric.testing.build import LANE, ask, execution_id, order, submissions
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import ALL, in_threads, put, take


async def test_a_large_batch_goes_all_the_way(store: Store, clock: VirtualClock) -> None:
    now_ms = clock.now_ms()
    orders = [order(n, payload=b"%d" % n, tags={"a.b": str(n % 7)}) for n in range(2_000)]
    answers = await store.insert(submissions(orders, now_ms), now_ms)
    assert [answer.created for answer in answers] == [True] * 2_000

    for round_number in range(4):
        leases = await take(store, clock, 500, token=f"token-{round_number}")
        assert [lease.id for lease in leases] == [
            execution_id(n) for n in range(round_number * 500, round_number * 500 + 500)
        ]
        done = [complete(lease, now_ms, b"from " + lease.payload) for lease in leases]
        assert await store.apply(done, now_ms) == [Applied(lease.id) for lease in leases]

    ids = [execution_id(n) for n in range(2_000)]
    ends = await store.endings(ids)
    assert [end.result for end in ends if end] == [b"from %d" % n for n in range(2_000)]
    assert len(await store.find(Query(tags={"a.b": "3"}, limit=ALL))) == 286
    assert len(await store.tail(Feed(limit=ALL))) == 6_000


@pytest.mark.parametrize("lanes", [(LANE,), (LANE, "other")])
async def test_the_best_of_a_crowd_is_found_although_it_came_last(
    store: Store, clock: VirtualClock, lanes: tuple[str, ...]
) -> None:
    await put(store, clock, *(order(n, priority=int(n == 199)) for n in range(200)))
    leases = await take(store, clock, 2, lanes=lanes)
    assert [lease.id for lease in leases] == [execution_id(199), execution_id(0)]


async def test_many_callers_in_one_loop(store: Store, clock: VirtualClock) -> None:
    """Each claims one and finishes it, all at the same time; none gets what another has."""
    await put(store, clock, *(order(n) for n in range(60)))
    now_ms = clock.now_ms()

    async def one(number: int) -> ExecutionId:
        lease = (await store.claim(ask(now_ms, token=f"token-{number}")))[0]
        answers = await store.apply([complete(lease, now_ms, b"")], now_ms)
        assert answers == [Applied(lease.id)]
        return lease.id

    done = await asyncio.gather(*(one(number) for number in range(60)))
    assert sorted(done) == [execution_id(n) for n in range(60)]
    assert len(await store.find(Query(states=(State.COMPLETED,), limit=ALL))) == 60


async def test_every_row_is_claimed_once_by_several_threads(
    store: Store, clock: VirtualClock
) -> None:
    await put(store, clock, *(order(n) for n in range(300)))
    now_ms = clock.now_ms()

    async def claim_until_empty(number: int) -> list[ExecutionId]:
        mine: list[ExecutionId] = []
        while leases := await store.claim(
            ask(now_ms, limit=7, token=f"token-{number}-{len(mine)}")
        ):
            mine += [lease.id for lease in leases]
        return mine

    claimed = await asyncio.to_thread(in_threads, 4, claim_until_empty)
    counts = Counter(id for mine in claimed for id in mine)
    assert counts == {execution_id(n): 1 for n in range(300)}


async def test_the_same_new_key_is_taken_once_by_several_threads(
    store: Store, clock: VirtualClock
) -> None:
    now_ms = clock.now_ms()

    async def submit_same(number: int) -> list[tuple[ExecutionId, bool]]:
        mine = [order(number * 100 + key, key=f"key-{key}") for key in range(20)]
        batches = [submissions([each], now_ms) for each in mine]
        answers = [(await store.insert(batch, now_ms))[0] for batch in batches]
        return [(answer.id, answer.created) for answer in answers]

    by_thread = await asyncio.to_thread(in_threads, 4, submit_same)
    for answers in zip(*by_thread, strict=True):
        assert sum(created for _, created in answers) == 1
        assert len({id for id, _ in answers}) == 1
    assert len(await store.find(Query(limit=ALL))) == 20


async def test_a_row_is_ended_once_by_several_threads(store: Store, clock: VirtualClock) -> None:
    rows = await put(store, clock, *(order(n) for n in range(40)))
    now_ms = clock.now_ms()

    async def end_all(number: int) -> list[bool]:
        reason = f"by {number}"
        ends = [cancel(row, now_ms, reason, source=Source.OPERATOR) for row in rows]
        return [await store.commit(Changeset([end]), now_ms) for end in ends]

    by_thread = await asyncio.to_thread(in_threads, 4, end_all)
    assert [sum(done) for done in zip(*by_thread, strict=True)] == [1] * 40
    for number, row in enumerate(await store.find(Query(limit=ALL))):
        winner = next(who for who in range(4) if by_thread[who][number])
        assert (row.outcome_detail, row.rev) == (f"by {winner}", 2)


async def test_a_reader_misses_no_line_while_others_write(
    store: Store, clock: VirtualClock
) -> None:
    now_ms = clock.now_ms()
    finished = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def write(number: int) -> None:
        for n in range(30):
            await store.insert(submissions([order(number * 100 + n)], now_ms), now_ms)

    def write_all() -> None:
        in_threads(3, write)
        loop.call_soon_threadsafe(finished.set)

    writing = asyncio.create_task(asyncio.to_thread(write_all))
    seen: list[str] = []
    cursor, last_look = "", False
    while not last_look:
        await asyncio.sleep(0)
        last_look = finished.is_set()
        while page := await store.tail(Feed(after=cursor, limit=5)):
            seen += [event.execution for event in page]
            cursor = page[-1].cursor
    await writing
    assert Counter(seen) == {execution_id(w * 100 + n): 1 for w in range(3) for n in range(30)}
