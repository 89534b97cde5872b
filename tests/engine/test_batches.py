"""Many in one call: answers in order, and one refusal that spoils no other."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from flowfabric.core.model import Want
from flowfabric.core.names import TAGS_MAX
from flowfabric.core.states import State
from flowfabric.core.transition import BATCH_LIMIT
from flowfabric.engine.engine import Engine
from flowfabric.engine.outcomes import Completed, Failed
from flowfabric.errors import FlowFabricError, InvalidInput
from flowfabric.store.clock import SKEW_LIMIT_MS
from flowfabric.testing.build import TTL_MS, order, submissions
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb
from tests.engine.desk import BROKEN, Desk


async def test_one_bad_outcome_spoils_no_other(desk: Desk) -> None:
    """A stale lease, a grant, and two words about one execution, between two good ones."""
    await desk.engine.submit([order(number) for number in range(5)])
    first, stale, again, last = await desk.claim(limit=4)
    (grant,) = await desk.claim(start=False)
    await desk.engine.cancel(stale.id)
    finished = await desk.engine.finish(
        [
            Completed(first, b"1"),
            Completed(stale, b"2"),
            Completed(grant, b"3"),
            Completed(again, b"4"),
            Failed(again, BROKEN),
            Completed(last, b"5"),
        ]
    )
    codes = [each.error.code if each.error else "" for each in finished]
    assert codes == [
        "",
        "execution_not_active",
        "invalid_input",
        "",
        "execution_not_active",
        "",
    ]
    assert [each.id for each in finished] == [
        first.id,
        stale.id,
        grant.id,
        again.id,
        again.id,
        last.id,
    ]
    assert [await desk.engine.read.result(each.id) for each in (first, again, last)] == [
        b"1",
        b"4",
        b"5",
    ]


async def test_one_lost_lease_spoils_no_renewal(desk: Desk) -> None:
    await desk.engine.submit([order(number) for number in range(3)])
    leases = await desk.claim(limit=3)
    await desk.engine.cancel(leases[1].id)
    desk.clock.advance(1_000)
    renewed = await desk.engine.renew(leases, TTL_MS)
    errors: list[FlowFabricError | None] = [each.error for each in renewed]
    assert [error is None for error in errors] == [True, False, True]
    assert [each.lease.id for each in renewed] == [lease.id for lease in leases]
    assert renewed[2].lease.until_ms == desk.clock.now_ms() + TTL_MS


async def test_more_leases_than_a_call_takes_are_renewed_in_several(desk: Desk) -> None:
    many = BATCH_LIMIT + 3
    await desk.engine.submit([order(number) for number in range(many)])
    leases = [*await desk.claim(limit=BATCH_LIMIT), *await desk.claim(limit=BATCH_LIMIT)]
    faulty = FaultyStore(desk.store)
    renewed = await Engine(faulty, clock=desk.clock).renew(leases, TTL_MS)
    assert [each.lease.id for each in renewed] == [lease.id for lease in leases]
    assert all(each.error is None for each in renewed)
    assert faulty.calls[Verb.APPLY] == 2


async def test_a_policy_that_cannot_be_read_spoils_no_other_outcome(desk: Desk) -> None:
    now_ms = desk.clock.now_ms()
    first, second = submissions([order(0), order(1)], now_ms)
    newer = msgspec.structs.replace(second.execution, policy='{"from":"the future"}')
    await desk.store.insert([first, msgspec.structs.replace(second, execution=newer)], now_ms)
    good, bad = await desk.claim(limit=2)
    finished = await desk.engine.finish([Failed(bad, BROKEN), Completed(good, b"1")])
    assert [each.error.code if each.error else "" for each in finished] == [
        "invalid_policy_json",
        "",
    ]
    assert (await desk.head(bad.id)).state is State.ACTIVE


async def test_more_leases_than_one_call_takes_are_renewed_however_slow_the_store_is(
    desk: Desk,
) -> None:
    many = BATCH_LIMIT + 100
    await desk.engine.submit([order(number) for number in range(many)])
    leases = await desk.claim(BATCH_LIMIT) + await desk.claim(BATCH_LIMIT)

    async def slow() -> None:
        desk.clock.advance(SKEW_LIMIT_MS - 100)

    faulty = FaultyStore(desk.store, [Fault(Verb.APPLY, 2, Kind.DELAY, hook=slow)])
    engine = Engine(faulty, clock=desk.clock)
    desk.clock.advance(10_000)
    renewed = await engine.renew(leases, TTL_MS)
    assert [answer.error for answer in renewed] == [None] * many
    assert faulty.calls[Verb.APPLY] == 2


async def test_operators_who_write_at_once_all_have_their_way(desk: Desk) -> None:
    """Also if a rival wrote in the same millisecond what looks like one's own."""
    id = await desk.submit()
    keys = [f"race.k{number}" for number in range(6)]
    await asyncio.gather(*(desk.engine.set_tags(id, {key: "1"}) for key in keys))
    (loaded,) = await desk.store.load(Want(ids=[id], tags=True))
    assert loaded is not None
    assert sorted(loaded.tags) == keys


async def test_tags_of_one_execution_are_limited_however_they_came(desk: Desk) -> None:
    id = await desk.submit(order(tags={f"a.k{number}": "1" for number in range(TAGS_MAX)}))
    with pytest.raises(InvalidInput) as refused:
        await desk.engine.set_tags(id, {"b.one": "1"})
    assert refused.value.field == "tags"
    assert await desk.engine.set_tags(id, {"a.k0": "2"}) == 1
