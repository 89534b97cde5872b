"""Relational dispatch (S2): conflicts, errors, and what is left when a dispatcher dies."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric.core.flow.dispatch import Advanced
from flowfabric.core.flow.graph import Policy
from flowfabric.core.flow.model import Join, OnSatisfied
from flowfabric.engine import telemetry
from flowfabric.engine.conflict import PAUSES_SECONDS
from flowfabric.engine.dispatcher import LEASE_MS
from flowfabric.errors import Conflict, IllegalTransition, StoreUnavailable
from flowfabric.testing import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.flows import links, plan
from tests.flow.desk import FlowDesk
from tests.flow.watched import Meddler, Refusing


@pytest.mark.parametrize("conflicts", [1, 2])
async def test_s2_37_a_conflict_is_tried_again(desk: FlowDesk, conflicts: int) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    (line,) = await desk.lines()
    meddled = Meddler(desk.store, conflicts)
    other = FlowDesk(meddled, desk.clock)
    assert await other.dispatcher.dispatch(line) == Advanced(1)
    assert meddled.calls[Verb.COMMIT_EACH] == conflicts + 1
    assert other.dispatcher.counts.value(telemetry.CONFLICTS) == conflicts
    assert await desk.counters() == {"completed": 1}
    assert PAUSES_SECONDS == (0.005, 0.010)


async def test_s2_38_three_conflicts_in_a_row_are_told(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    (line,) = await desk.lines()
    meddled = Meddler(desk.store, 3)
    with pytest.raises(Conflict) as refused:
        await FlowDesk(meddled, desk.clock).dispatcher.dispatch(line)
    assert refused.value.details["kind"] == "retry_exhausted"
    assert meddled.calls[Verb.COMMIT_EACH] == 3
    assert (await desk.lines(), await desk.counters()) == ([line], {})


async def test_s2_39_any_other_error_is_told_at_once(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    (line,) = await desk.lines()
    broken = Refusing(desk.store, Verb.COMMIT_EACH, IllegalTransition("not like this"))
    with pytest.raises(IllegalTransition):
        await FlowDesk(broken, desk.clock).dispatcher.dispatch(line)
    assert broken.calls[Verb.COMMIT_EACH] == 1
    assert (await desk.lines(), await desk.counters()) == ([line], {})


@pytest.mark.parametrize("verb", [Verb.GRAPH, Verb.COMMIT_EACH])
@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.CANCELLED])
async def test_s2_40_whoever_comes_next_completes_what_a_dead_dispatcher_began(
    desk: FlowDesk, verb: Verb, kind: Kind
) -> None:
    """It dies at its second call of the verb, with one level done and two to go."""
    first = Policy(Join.ANY_OF, 1, OnSatisfied.CANCEL_REMAINING)
    await desk.draw(plan("abcdx", links("a>b b>c c>d c>x a>x"), policies={"x": first}))
    await desk.end("a", outcome="failed")
    dying = FaultyStore(desk.store, [Fault(verb, 2, kind, times=3)])
    with pytest.raises((StoreUnavailable, asyncio.CancelledError)):
        await FlowDesk(dying, desk.clock).dispatch()
    assert len(await desk.lines()) == 1
    desk.clock.advance(LEASE_MS)
    await desk.another().dispatch()
    assert await desk.states("bcdx") == dict.fromkeys("bcdx", "skipped")
    assert (await desk.lines(), await desk.counters()) == ([], {"failed": 1, "skipped": 4})
    group = await desk.group("x")
    assert (group.failed, group.skipped, group.running) == (1, 1, 0)
