"""Rows that many want at once: no deadlock, no stale verdict, nothing taken twice or left lying."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import msgspec
import pytest

from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import complete, progress, renew
from flowfabric.core.model import Claim, Execution, Feed, Lease
from flowfabric.core.operator import Source, cancel, set_tags
from flowfabric.core.timers import on_due
from flowfabric.core.transition import Applied, Changeset, Rejected, Transition
from flowfabric.store.postgres import PostgresStore, connections
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import TTL_MS, ask, execution_id, order, submissions
from flowfabric.testing.conformance.steps import ALL, head, put, put_and_take, take
from tests.store.postgres.desk import WAITED_FOR, Desk, waited_for


async def test_shuffled_batches_of_the_same_rows_never_deadlock(
    desk: Desk, store: PostgresStore, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight connections finish the same leases, each in an order of its own."""
    monkeypatch.setattr(connections, "UNDONE", ())
    now_ms = clock.now_ms()
    await put(store, clock, *(order(n) for n in range(400)))
    leases = await take(store, clock, 400)
    others = [store, *[await desk.opened() for _ in range(7)]]

    async def finish(number: int) -> Counter[ExecutionId]:
        mine = random.Random(number).sample(leases, len(leases))
        done: Counter[ExecutionId] = Counter()
        for start in range(0, len(mine), 50):
            batch = [complete(lease, now_ms, b"") for lease in mine[start : start + 50]]
            answers = await others[number].apply(batch, now_ms)
            done.update(answer.id for answer in answers if isinstance(answer, Applied))
        return done

    finished = await asyncio.gather(*(finish(number) for number in range(8)))
    assert sum(finished, Counter()) == {lease.id: 1 for lease in leases}
    lines = await store.tail(Feed(limit=ALL))
    assert Counter(line.kind for line in lines)["completed"] == 400


async def test_shuffled_changesets_of_several_shapes_never_deadlock(
    desk: Desk, store: PostgresStore, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "UNDONE", ())
    now_ms = clock.now_ms()
    rows = await put(store, clock, *(order(n) for n in range(40)))
    others = [store, *[await desk.opened() for _ in range(7)]]

    def changes(seed: int) -> Changeset:
        mine = random.Random(seed).sample(rows, len(rows))
        tagged: list[Transition] = [set_tags(row, now_ms, {"a.b": "c"}) for row in mine[:20]]
        ended = [cancel(row, now_ms, "", source=Source.OPERATOR) for row in mine[20:]]
        return Changeset([*tagged, *ended])

    done = await asyncio.gather(
        *(others[n].commit(changes(n), now_ms) for n in range(8) for _ in range(3))
    )
    assert sum(done) == 1


async def both(
    first: PostgresStore, second: PostgresStore, one: Transition, other: Transition
) -> tuple[Applied | Rejected, Applied | Rejected]:
    now_ms = first._clock.now_ms() if first._clock else 0
    answers = await asyncio.gather(first.apply([one], now_ms), second.apply([other], now_ms))
    return answers[0][0], answers[1][0]


async def test_a_verdict_is_about_the_locked_row(
    desk: Desk, store: PostgresStore, clock: VirtualClock
) -> None:
    """Two that cannot both win begin at once: one does, and the other is shown what happened."""
    other = await desk.opened()
    await put(store, clock, *(order(n) for n in range(150)))
    for lease in await take(store, clock, 150):
        now_ms = clock.now_ms()
        lost = on_due(lease.head, lease.until_ms).transition
        answers = await both(store, other, renew(lease, now_ms, TTL_MS), lost)
        row = await head(store, lease.id)
        assert sorted(isinstance(answer, Applied) for answer in answers) == [False, True]
        assert [a.current for a in answers if isinstance(a, Rejected)] == [row]


async def test_a_row_that_fits_once_it_is_locked_is_not_refused(
    desk: Desk, store: PostgresStore, clock: VirtualClock
) -> None:
    """The writer waits for another one; what that one did does not touch its guard."""
    lease = await put_and_take(store, clock, order(0))
    raw = await desk.raw()
    await raw.execute("BEGIN")
    await raw.execute("UPDATE execution SET progress_pct = 5, rev = rev + 1")
    now_ms = clock.now_ms()
    waiting = asyncio.create_task(store.apply([complete(lease, now_ms, b"done")], now_ms))
    await waited_for(raw)
    await raw.execute("COMMIT")
    assert await waiting == [Applied(lease.id)]
    row = await head(store, lease.id)
    assert (row.state, row.progress_pct, row.rev) == ("completed", 5, lease.head.rev + 2)


async def test_a_guard_that_holds_once_the_row_is_locked_is_not_refused(
    desk: Desk, store: PostgresStore, clock: VirtualClock
) -> None:
    """The lease is given while its holder's word waits: the row of before does not count."""
    earlier = await put_and_take(store, clock, order(0))
    lease = Lease(msgspec.structs.replace(earlier.head, epoch=earlier.epoch + 1))
    raw = await desk.raw()
    await raw.execute("BEGIN")
    await raw.execute("UPDATE execution SET epoch = epoch + 1, rev = rev + 1")
    now_ms = clock.now_ms()
    waiting = asyncio.create_task(store.apply([complete(lease, now_ms, b"done")], now_ms))
    await waited_for(raw)
    await raw.execute("COMMIT")
    assert await waiting == [Applied(lease.id)]
    assert (await head(store, lease.id)).state == "completed"


async def test_a_refusal_shows_what_the_other_wrote_while_it_was_waited_for(
    desk: Desk, store: PostgresStore, clock: VirtualClock
) -> None:
    lease = await put_and_take(store, clock, order(0))
    raw = await desk.raw()
    await raw.execute("BEGIN")
    await raw.execute("UPDATE execution SET state = 'cancelled', epoch = 9, rev = rev + 1")
    now_ms = clock.now_ms()
    waiting = asyncio.create_task(store.apply([progress(lease, now_ms, 1, None)], now_ms))
    await waited_for(raw)
    await raw.execute("COMMIT")
    (refused,) = await waiting
    assert isinstance(refused, Rejected)
    assert isinstance(refused.current, Execution)
    assert (refused.current.state, refused.current.epoch) == ("cancelled", 9)


@pytest.mark.parametrize("lanes", [("main",), ("main", "b", "c")])
async def test_what_others_are_taking_is_passed_over(
    desk: Desk, store: PostgresStore, clock: VirtualClock, lanes: tuple[str, ...]
) -> None:
    """However many of the best are locked: a claim that could take something takes it."""
    for start in range(0, 1_000, 500):
        await put(store, clock, *(order(n) for n in range(start, start + 500)))
    raw = await desk.raw()
    await raw.execute("BEGIN")
    await raw.execute("SELECT FROM execution WHERE id < $1 FOR UPDATE", execution_id(990))
    leases = await store.claim(ask(clock.now_ms(), limit=3, lanes=lanes))
    assert [lease.id for lease in leases] == [execution_id(n) for n in (990, 991, 992)]
    await raw.execute("ROLLBACK")


async def test_one_that_another_is_taking_is_not_waited_for(
    desk: Desk, store: PostgresStore, clock: VirtualClock
) -> None:
    (row,) = await put(store, clock, order(0))
    raw = await desk.raw()
    await raw.execute("BEGIN")
    await raw.execute("SELECT FROM execution FOR UPDATE")
    claim = asyncio.create_task(store.claim(ask(clock.now_ms(), only=row.id)))
    is_waiting = False
    while not claim.done() and not is_waiting:
        is_waiting = await raw.fetchval(WAITED_FOR)
    await raw.execute("ROLLBACK")
    assert await claim == []
    assert not is_waiting


async def test_a_changeset_locks_in_the_order_of_ids_whatever_its_shapes(
    desk: Desk, store: PostgresStore, clock: VirtualClock
) -> None:
    """It waits for the last row, whose change is written first, and holds the first one by then."""
    now_ms = clock.now_ms()
    first, last = await put(store, clock, order(0), order(1))
    raw, other = await desk.raw(), await desk.raw()
    await raw.execute("BEGIN")
    await raw.execute("SELECT FROM execution WHERE id = $1 FOR UPDATE", last.id)
    ended = cancel(first, now_ms, "", source=Source.OPERATOR)
    changes = Changeset([set_tags(last, now_ms, {"a.b": "c"}), ended])
    waiting = asyncio.create_task(store.commit(changes, now_ms))
    await waited_for(raw)
    free = await other.fetch("SELECT id FROM execution FOR UPDATE SKIP LOCKED")
    await raw.execute("ROLLBACK")
    assert await waiting
    assert free == []


async def test_eight_who_claim_at_once_take_everything_once(
    desk: Desk, store: PostgresStore, clock: VirtualClock
) -> None:
    lanes = ("a", "b", "c")
    now_ms = clock.now_ms()
    orders = [order(n, lane=lanes[n % 3], priority=n % 5) for n in range(600)]
    await store.insert(submissions(orders, now_ms), now_ms)
    others = [store, *[await desk.opened() for _ in range(7)]]

    def asked(number: int, turn: int) -> Claim:
        return ask(now_ms, limit=9, lanes=lanes, token=f"token-{number}-{turn}")

    async def claim(number: int) -> list[Lease]:
        mine: list[Lease] = []
        while leases := await others[number].claim(asked(number, len(mine))):
            ranks = [(-x.head.priority, x.head.created_ms, x.id) for x in leases]
            assert ranks == sorted(ranks)
            mine += leases
        return mine

    taken = await asyncio.gather(*(claim(number) for number in range(8)))
    counts = Counter(lease.id for mine in taken for lease in mine)
    assert counts == {each.id: 1 for each in orders}
