"""Many in one call: answers in order, and one refusal that spoils no other."""

from __future__ import annotations

from flowfabric.core.states import State
from flowfabric.core.transition import BATCH_LIMIT
from flowfabric.engine.engine import Engine
from flowfabric.engine.outcomes import Completed, Failed
from flowfabric.errors import FlowFabricError
from flowfabric.testing.build import TTL_MS, order
from flowfabric.testing.faults import FaultyStore, Verb
from tests.engine.desk import BROKEN, Desk, forged


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
    await desk.engine.submit([order(number) for number in range(2)])
    good, bad = await desk.claim(limit=2)
    broken = forged(bad, policy='{"from":"the future"}')
    finished = await desk.engine.finish([Failed(broken, BROKEN), Completed(good, b"1")])
    assert [each.error.code if each.error else "" for each in finished] == [
        "invalid_policy_json",
        "",
    ]
    assert (await desk.head(bad.id)).state is State.ACTIVE
