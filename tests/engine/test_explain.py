"""Why is it not running? Asked after every step of many lives: one sentence, and what wakes it."""

from __future__ import annotations

import pytest

from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import Failure
from flowfabric.core.states import LaneState, Reason, State
from flowfabric.errors import ExecutionNotFound
from flowfabric.testing.build import LANE, execution_id, order, policy
from tests.engine.desk import BROKEN, Desk


async def told(desk: Desk, id: ExecutionId) -> tuple[State, str, str]:
    """State, what wakes it, and the sentence; the last two are never empty."""
    explanation = await desk.engine.read.explain(id)
    assert explanation.sentence
    assert explanation.wakes
    assert explanation.state is (await desk.head(id)).state
    return explanation.state, explanation.wakes, explanation.sentence


async def test_a_life_with_everything_in_it(desk: Desk) -> None:
    takes = f"of lane '{LANE}' can take task 'greet'"
    delayed = "delayed until 2023-11-14T22:13:"
    id = await desk.submit(
        order(delay_until_ms=desk.clock.now_ms() + 1_000, policy=policy(retries=1))
    )
    assert await told(desk, id) == ("delayed", "timer", f"{delayed}21.000Z (in 1s)")
    desk.clock.advance(1_000)
    await desk.sweep()
    desk.clock.advance(2_500)
    await desk.employ()
    assert await told(desk, id) == ("waiting", "worker", f"ready; the next free worker {takes}")
    await desk.engine.block(id, Reason.PAUSED_BY_OPERATOR)
    paused = "paused by an operator; resume it to go on"
    assert await told(desk, id) == ("blocked_operator", "operator", paused)
    await desk.engine.unblock(id)
    grant = await desk.take(id, start=False)
    assert await told(desk, id) == ("active", "timer", "granted to worker-1, not started yet")
    lease = await desk.engine.start(grant)
    running = "running on worker-1, attempt 1, lease for another 30s"
    assert await told(desk, id) == ("active", "lease", running)
    await desk.engine.fail(lease, BROKEN)
    retry = f"retry 1 after: broke; {delayed}24.500Z (in 1s)"
    assert await told(desk, id) == ("delayed", "timer", retry)
    desk.clock.advance(1_000)
    await desk.sweep()
    lost = await desk.take(id)
    await desk.silent(lost)
    desk.clock.advance(500)
    await desk.employ(name="second")
    silent = f"its worker stopped renewing the lease; any other worker {takes}"
    assert await told(desk, id) == ("orphaned", "worker", silent)
    await desk.take(id)
    await desk.engine.revoke(id, "moved away")
    revoked = f"its lease was revoked (moved away); any worker {takes}"
    assert await told(desk, id) == ("revoked", "worker", revoked)
    await desk.engine.set_lane(LANE, LaneState.PAUSED)
    lane = f"lane '{LANE}' is paused; resume the lane to go on"
    assert await told(desk, id) == ("revoked", "lane", lane)
    await desk.engine.set_lane(LANE, LaneState.ACTIVE)
    await desk.engine.complete(await desk.take(id), b"1")
    assert await told(desk, id) == ("completed", "over", "completed at 2023-11-14T22:13:55.000Z")


@pytest.mark.parametrize(
    ("reason", "wakes", "sentence"),
    [
        (Reason.PAUSED_BY_POLICY, "operator", "paused by policy; unblock it to go on"),
        (Reason.WAITING_FOR_BUDGET, "timer", "waiting for budget; checked again in 5s"),
        (Reason.WAITING_FOR_QUOTA, "timer", "waiting for quota; checked again in 5s"),
        (
            Reason.WAITING_FOR_CAPABLE_WORKER,
            "timer",
            "waiting for capable worker; checked again in 5s",
        ),
    ],
)
async def test_every_gate_says_what_opens_it(
    desk: Desk, reason: Reason, wakes: str, sentence: str
) -> None:
    id = await desk.submit()
    await desk.engine.block(id, reason)
    assert (await told(desk, id))[1:] == (wakes, sentence)


async def test_every_end_says_how_it_came(desk: Desk) -> None:
    at = "at 2023-11-14T22:13:20.000Z"
    failed = await desk.running(order(1))
    await desk.engine.fail(failed, Failure("no route"))
    cancelled = await desk.submit(order(2))
    await desk.engine.cancel(cancelled, "not needed")
    bare = await desk.submit(order(3))
    await desk.engine.cancel(bare)
    assert await told(desk, failed.id) == ("failed", "over", f"failed {at}: no route")
    assert await told(desk, cancelled) == ("cancelled", "over", f"cancelled {at}: not needed")
    assert await told(desk, bare) == ("cancelled", "over", f"cancelled {at}")
    late = await desk.submit(order(4, deadline_ms=desk.clock.now_ms() + 1))
    desk.clock.advance(1)
    await desk.sweep()
    expired = "expired at 2023-11-14T22:13:20.001Z: execution_deadline"
    assert await told(desk, late) == ("expired", "over", expired)


async def test_a_replay_is_ready_like_anything_else(desk: Desk) -> None:
    id = await desk.completed()
    await desk.engine.replay(id)
    await desk.employ()
    state, wakes, sentence = await told(desk, id)
    assert (state, wakes) == ("waiting", "worker")
    assert sentence.startswith("ready; ")


async def test_a_worker_that_hands_its_work_back_is_not_blamed(desk: Desk) -> None:
    lease = await desk.running()
    await desk.engine.release(lease)
    state, wakes, sentence = await told(desk, lease.id)
    assert (state, wakes) == ("waiting", "worker")
    assert "silent" not in sentence


async def test_what_does_not_exist_cannot_be_explained(desk: Desk) -> None:
    with pytest.raises(ExecutionNotFound):
        await desk.engine.read.explain(execution_id(999))
