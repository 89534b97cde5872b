"""Relational dispatch (S2): conflicts, errors, and what is left when a dispatcher dies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import asyncpg
import pytest

from flowfabric.core.flow.dispatch import Advanced
from flowfabric.core.flow.graph import Policy
from flowfabric.core.flow.model import Join, OnSatisfied
from flowfabric.core.flow.views import Sight, Turn, View
from flowfabric.engine import telemetry
from flowfabric.engine.dispatcher import LEASE_MS
from flowfabric.errors import (
    Conflict,
    Corrupt,
    ExecutionNotFound,
    FlowFabricError,
    IllegalTransition,
    InvalidInput,
    StoreMismatch,
    StoreUnavailable,
)
from flowfabric.store.postgres import PostgresStore
from flowfabric.testing import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.flows import FLOW, links, plan
from tests.flow.desk import FlowDesk
from tests.flow.watched import Meddler, Refusing


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that somebody asks for; none is made."""
    pauses: list[float] = []
    rightly = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds:
            pauses.append(seconds)
        await rightly(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return pauses


async def test_who_waits_for_counters_asks_ever_more_seldom(
    desk: FlowDesk, slept: list[float]
) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    now_ms = desk.clock.now_ms()
    await desk.store.pending(Turn(limit=1, now_ms=now_ms, until_ms=now_ms + 7))

    class Aging(FaultyStore):
        """Every look takes a millisecond, until the lease of somebody else is over."""

        async def graph(self, sights: Sequence[Sight]) -> list[View]:
            desk.clock.advance(1)
            return await super().graph(sights)

    flow = await FlowDesk(Aging(desk.store), desk.clock).engine.flows.counted(FLOW)
    assert flow.completed == 1
    assert slept == [0.005, 0.010, 0.020, 0.040, 0.080, 0.1, 0.1][: len(slept)]
    assert len(slept) > 1


@pytest.mark.parametrize("conflicts", [1, 2])
async def test_s2_37_a_conflict_is_tried_again(
    desk: FlowDesk, slept: list[float], conflicts: int
) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    (line,) = await desk.lines()
    meddled = Meddler(desk.store, conflicts)
    other = FlowDesk(meddled, desk.clock)
    assert await other.dispatcher.dispatch(line) == Advanced(1)
    assert meddled.calls[Verb.COMMIT_EACH] == conflicts + 1
    assert other.dispatcher.counts.value(telemetry.CONFLICTS) == conflicts
    assert await desk.counters() == {"completed": 1}
    assert slept == [0.005, 0.010][:conflicts]


TROUBLE = """
CREATE SEQUENCE "{schema}".trouble;
CREATE FUNCTION "{schema}".trouble() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('"{schema}".trouble') <= 2 THEN
        RAISE EXCEPTION 'provoked' USING ERRCODE = '{code}';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER trouble BEFORE UPDATE ON "{schema}".edge_group
    FOR EACH ROW EXECUTE FUNCTION "{schema}".trouble();
"""
REMEDY = """
DROP FUNCTION "{schema}".trouble() CASCADE;
DROP SEQUENCE "{schema}".trouble;
"""


@pytest.mark.parametrize("store_kind", ["postgres"])
@pytest.mark.parametrize("code", ["40001", "40P01", "55P03"])
async def test_s2_37_what_a_server_undid_is_tried_again(desk: FlowDesk, code: str) -> None:
    """A serialization failure, a deadlock, a lock that was not given in time."""
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    (line,) = await desk.lines()
    assert isinstance(desk.store, PostgresStore)
    schema, raw = desk.store.address.schema, await asyncpg.connect(desk.store.address.dsn)
    await raw.execute(TROUBLE.format(schema=schema, code=code))
    try:
        assert await desk.dispatcher.dispatch(line) == Advanced(1)
        asked = await raw.fetchval(f'SELECT last_value FROM "{schema}".trouble')  # noqa: S608
        assert asked == 3
    finally:
        await raw.execute(REMEDY.format(schema=schema))
        await raw.close()
    assert (await desk.lines(), await desk.counters()) == ([], {"completed": 1})


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


OTHERS = [Corrupt, IllegalTransition, InvalidInput, StoreMismatch, ExecutionNotFound]


@pytest.mark.parametrize("error", OTHERS)
async def test_s2_39_any_other_error_is_told_at_once(
    desk: FlowDesk, error: type[FlowFabricError]
) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    (line,) = await desk.lines()
    broken = Refusing(desk.store, Verb.COMMIT_EACH, error("not like this"), times=9)
    with pytest.raises(error):
        await FlowDesk(broken, desk.clock).dispatcher.dispatch(line)
    assert broken.calls[Verb.COMMIT_EACH] == 1
    assert (await desk.lines(), await desk.counters()) == ([line], {})


@pytest.mark.parametrize("failures", [2, 3])
async def test_s2_39_a_store_in_trouble_is_asked_three_times(
    desk: FlowDesk, slept: list[float], failures: int
) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    (line,) = await desk.lines()
    trouble = Refusing(desk.store, Verb.COMMIT_EACH, StoreUnavailable("gone"), times=failures)
    other = FlowDesk(trouble, desk.clock).dispatcher
    if failures < 3:
        assert await other.dispatch(line) == Advanced(1)
        assert trouble.calls[Verb.COMMIT_EACH] == 3
        assert slept == [0.005, 0.010]
        return
    with pytest.raises(StoreUnavailable):
        await other.dispatch(line)
    assert (trouble.calls[Verb.COMMIT_EACH], slept) == (3, [0.005, 0.010])
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
