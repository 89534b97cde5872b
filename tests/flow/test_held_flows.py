"""A hint that is heard while the flow is held is not lost, whoever holds the flow.

A dispatcher rests when it has nothing more to ask; what is open then waits for a poll. No test
waits for one: a dispatcher is run until it would rest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.model import Unreadable
from flowfabric.core.flow.views import LINES_LIMIT, Pending, Turn
from flowfabric.core.states import State
from flowfabric.core.transition import BATCH_LIMIT, Changeset
from flowfabric.engine.dispatcher import LEASE_MS, NET_SECONDS, Dispatcher
from flowfabric.engine.outcomes import Completed
from flowfabric.store import Store
from flowfabric.store.hints import Hint
from flowfabric.testing import FaultyStore
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.flows import FLOW, plan
from tests.flow.desk import FlowDesk

ROUNDS_MAX = 20
NAMED = Hint(flows=(FLOW,))
UNNAMED = Hint(foreign=True)

Hook = Callable[[], Awaitable[None]]


class Meanwhile(FaultyStore):
    """Lets something happen once, after a dispatcher has read lines or before it writes."""

    after_lines: Hook | None = None
    before_write: Hook | None = None

    async def pending(self, turn: Turn) -> list[Pending | Unreadable]:
        found = await super().pending(turn)
        if found and self.after_lines is not None:
            hook, self.after_lines = self.after_lines, None
            await hook()
        return found

    async def commit_each(self, batch: Sequence[Changeset], now_ms: int) -> list[bool]:
        if self.before_write is not None:
            hook, self.before_write = self.before_write, None
            await hook()
        return await super().commit_each(batch, now_ms)


async def rested(dispatcher: Dispatcher) -> bool:
    """Whether the dispatcher has found all that it was told of, and would now wait for a poll, or
    for the end of a lease that it has given back already."""
    for _ in range(ROUNDS_MAX):
        if await dispatcher._round() >= LEASE_MS / 1000:
            return True
    return False


@pytest.mark.parametrize("hint", [NAMED, UNNAMED])
@pytest.mark.parametrize("moment", ["after_lines", "before_write"])
async def test_an_end_elsewhere_while_its_flow_is_worked_on_is_acted_on(
    store: Store, clock: VirtualClock, desk: FlowDesk, hint: Hint, moment: str
) -> None:
    watched = Meanwhile(store)
    here = FlowDesk(watched, clock)
    await desk.draw(plan("abc", "a>c b>c"))
    await desk.end("a")

    async def end_elsewhere() -> None:
        await desk.end("b")
        here.dispatcher.hear(hint)

    setattr(watched, moment, end_elsewhere)
    here.dispatcher.hear(hint)
    assert await rested(here.dispatcher)
    assert await desk.state("c") is State.WAITING
    assert await desk.counters() == {"completed": 2}


async def test_a_flow_that_another_dispatcher_holds_is_asked_for_until_it_is_free(
    desk: FlowDesk,
) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    now_ms = desk.clock.now_ms()
    held = Turn(limit=1, now_ms=now_ms, until_ms=now_ms + LEASE_MS)
    assert len(await desk.store.pending(held)) == 1
    desk.dispatcher.hear(NAMED)
    assert not await rested(desk.dispatcher)
    desk.clock.advance(LEASE_MS)
    assert await rested(desk.dispatcher)
    assert await desk.state("b") is State.WAITING


async def test_a_flow_with_nothing_to_do_is_asked_for_once(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.ended("a")
    desk.dispatcher.hear(NAMED)
    assert await desk.dispatcher._round() == NET_SECONDS
    assert desk.dispatcher._hinted == {}


async def many_ended(desk: FlowDesk, members: int) -> None:
    """A flow whose members nobody waits for, all of which have ended."""
    await desk.draw(plan(range(1_000, 1_000 + members)))
    await desk.dispatch()
    while leases := await desk.claim(BATCH_LIMIT):
        ended = await desk.engine.finish([Completed(lease, b"1") for lease in leases])
        assert not [each for each in ended if each.error]


async def test_more_lines_than_one_round_reads_are_all_acted_on(desk: FlowDesk) -> None:
    await many_ended(desk, 2 * LINES_LIMIT + 1)
    desk.dispatcher.hear(NAMED)
    assert await rested(desk.dispatcher)
    assert await desk.lines() == []
    assert await desk.counters() == {"completed": 2 * LINES_LIMIT + 1}


async def test_a_lease_is_let_go_also_when_somebody_changes_the_flow_at_that_moment(
    store: Store, clock: VirtualClock, desk: FlowDesk
) -> None:
    class Changed(FaultyStore):
        async def commit_each(self, batch: Sequence[Changeset], now_ms: int) -> list[bool]:
            first, *_ = batch
            if first.flows[0].patch == {"busy_until_ms": 0} and not changed:
                changed.append(first)
                flow = await desk.flow()
                change = FlowPatch(FLOW, flow.rev, {"failures": 0})
                assert await store.commit(Changeset(flows=[change]), now_ms)
            return await super().commit_each(batch, now_ms)

    changed: list[Changeset] = []
    # As many lines as one round reads: only the next look shows that there are no more.
    await many_ended(desk, LINES_LIMIT)
    here = FlowDesk(Changed(store), clock)
    here.dispatcher.hear(NAMED)
    assert await rested(here.dispatcher)
    assert changed
    assert (await desk.flow()).busy_until_ms == 0
