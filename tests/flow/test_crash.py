"""The crash lab of flows: a process that dies before or after any of its writes, be it a submit, a
claim, an end, a turn or a hop of the dispatcher, loses and doubles nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flowfabric.core.flow.graph import Plan
from flowfabric.core.ids import FlowId
from flowfabric.store import Store
from flowfabric.testing import Kind, Verb
from flowfabric.testing.flow_invariants import broken_flow
from flowfabric.testing.flows import flow_id
from flowfabric.testing.invariants import broken_promises
from tests.conftest import Size
from tests.flow.desk import FlowDesk
from tests.flow.dying import WRITES, Died, Mortal
from tests.flow.scenario import ROUNDS, Story, scenario, step, story

PROGRESS_EVERY = 50


async def play(desk: FlowDesk, wanted: Plan) -> None:
    """From the submit to the end, by as many processes as it takes."""
    is_there = False
    for _ in range(ROUNDS):
        try:
            if not is_there:
                await desk.engine.flows.submit(wanted)
            is_there = True
            if not await step(desk, wanted.id) and await is_over(desk, wanted.id):
                return
        except Died:
            desk = desk.another()
            await desk.engine.open()
    raise AssertionError("it never came to rest")


async def is_over(desk: FlowDesk, flow: FlowId) -> bool:
    found = await desk.flow(flow)
    return found.ended == found.total


async def told(store: Store, desk: FlowDesk, wanted: Plan, *, is_known: bool) -> Story:
    mine = FlowDesk(store, desk.clock)
    mine._tokens = desk._tokens
    if is_known:
        mine.engine.known.begin()
    await mine.engine.open()
    await play(mine, wanted)
    return await story(mine, wanted.id)


def deaths(writes: int, store_kind: str) -> list[tuple[int, Kind]]:
    """What is left by one who dies after a write is what one leaves who dies before the next: no
    store can tell them apart, so one of them shows that for all."""
    kinds = [Kind.BEFORE, Kind.AFTER] if store_kind == "memory" else [Kind.AFTER]
    return [(at, kind) for at in range(1, writes + 1) for kind in kinds]


@pytest.mark.lab
@pytest.mark.parametrize("is_known", [False, True])
async def test_a_death_around_any_write_changes_nothing_in_the_end(
    desk: FlowDesk, store_kind: str, size: Size, is_known: bool, progress: Callable[[str], None]
) -> None:
    """Every life is a flow of its own in the same store; what is left of it must be the same."""
    width, depth = (200, 100) if size == "long" else (6, 4)
    alive = Mortal(desk.store)
    expected = await told(alive, desk, scenario(width, depth, flow_id(1)), is_known=is_known)
    assert expected.counters["skipped"] == depth
    assert expected.counters["cancelled"] == 5
    assert expected.lines == 0
    # Only a flow that is staged is written by plain commits, and only ends of one that is not known
    # leave lines to be taken up.
    assert WRITES - set(alive.writes) <= {Verb.COMMIT, *([Verb.APPLY] if is_known else [])}
    wanted_deaths = deaths(len(alive.writes), store_kind)
    for number, (at, kind) in enumerate(wanted_deaths, 2):
        if number % PROGRESS_EVERY == 0:
            progress(f"{number} of {len(wanted_deaths)} deaths")
        wanted = scenario(width, depth, flow_id(number))
        seen = await told(Mortal(desk.store, at, kind), desk, wanted, is_known=is_known)
        assert seen == expected, (at, kind, alive.writes[at - 1])
        assert broken_flow(await desk.whole(wanted.id)) == []
    assert await broken_promises(desk.store, desk.clock.now_ms()) == []
