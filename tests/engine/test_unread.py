"""Work that no worker can read is handed back with a growing pause, which begins anew."""

from __future__ import annotations

from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import State
from flowfabric.engine.outcomes import hand_back_unread
from tests.engine.desk import Desk


async def hand_back(desk: Desk, id: ExecutionId) -> int:
    """A worker takes it as soon as it may and cannot read it; answers how long it rests then."""
    lease = await desk.take(id)
    outcome = hand_back_unread(lease, desk.clock.now_ms(), "arguments: no `unit`")
    (answer,) = await desk.engine.finish([outcome])
    assert (answer.error, answer.state) == (None, State.DELAYED)
    pause_ms = outcome.until_ms - desk.clock.now_ms()
    desk.clock.set(outcome.until_ms)
    await desk.sweep()
    return pause_ms


async def test_the_pause_grows_and_begins_anew_with_a_replay(desk: Desk) -> None:
    id = await desk.submit()
    assert [await hand_back(desk, id) for _ in range(5)] == [1_000, 1_000, 2_000, 4_000, 8_000]
    await desk.engine.complete(await desk.take(id), b"1")
    desk.clock.advance(3_600_000)
    await desk.engine.replay(id, "again")
    assert [await hand_back(desk, id) for _ in range(4)] == [1_000, 1_000, 2_000, 4_000]
