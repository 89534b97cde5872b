"""What came of a flow: a truth table of graphs, the same on every store, and at any size."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import pytest

from flowfabric.core.flow.graph import Link, Policy
from flowfabric.core.flow.model import (
    CancelPolicy,
    CancelReason,
    Edge,
    EdgeKind,
    EdgeState,
    Join,
    OnSatisfied,
)
from flowfabric.core.flow.outcome import FlowOutcome, is_absorbed, is_loser
from flowfabric.core.flow.summary import FlowSnapshot, stored_outcome
from flowfabric.core.model import Execution
from flowfabric.core.operator import Source
from flowfabric.core.states import Reason, State
from flowfabric.engine import flow_outcomes
from flowfabric.engine.outcomes import Completed, Failed, Outcome
from flowfabric.testing.clock import START_MS
from flowfabric.testing.flows import FLOW, links, member, plan
from tests.corrupter import Raw
from tests.flow.desk import BROKEN, FlowDesk

RACE = Policy(Join.ANY_OF, 1, OnSatisfied.CANCEL_REMAINING)
LET = Policy(Join.ANY_OF, 1, OnSatisfied.LET_RUN)
TWO = Policy(Join.QUORUM, 2, OnSatisfied.CANCEL_REMAINING)
SUCCESS, FAILED = FlowOutcome.SUCCESS, FlowOutcome.FAILED


class Case(NamedTuple):
    """Members, edges (`a>b`, of a kind by a mark), who joins how, who fails, and the outcome."""

    members: str
    edges: str
    outcome: FlowOutcome
    fails: str = ""
    joins: dict[str, Policy] = {}  # noqa: RUF012 - a tuple's default, never changed


KINDS = {
    ">": EdgeKind.SUCCESS_ONLY,
    "?": EdgeKind.COMPLETION,
    "!": EdgeKind.FAILURE,
    ".": EdgeKind.ORDER,
}
TABLE: dict[str, Case] = {
    "everything succeeds": Case("ab", "a>b", SUCCESS),
    "a failure that nobody waits for": Case("ab", "", FAILED, "a"),
    "a failure that skips what is last": Case("ab", "a>b", FAILED, "a"),
    "a failure that skips a chain": Case("abcd", "a>b b>c c>d", FAILED, "a"),
    "the last one fails": Case("ab", "a>b", FAILED, "b"),
    "the loser of a race is cancelled": Case("abx", "a>x b>x", SUCCESS, joins={"x": RACE}),
    "one of a race fails": Case("abx", "a>x b>x", SUCCESS, "a", {"x": LET}),
    "all of a race fail": Case("abx", "a>x b>x", FAILED, "ab", {"x": LET}),
    "all of a race fail, and the race is one of another": Case(
        "abxcy", "a>x b>x x>y c>y", SUCCESS, "ab", {"x": LET, "y": LET}
    ),
    "a quorum without one of three": Case("abcx", "a>x b>x c>x", SUCCESS, "b", {"x": TWO}),
    "a quorum that cannot be": Case("abcx", "a>x b>x c>x", FAILED, "ab", {"x": TWO}),
    "a branch on failure runs": Case("ac", "a!c", SUCCESS, "a"),
    "a branch on failure runs, and the usual way is skipped": Case(
        "abcd", "a>b b>c a!d", SUCCESS, "a"
    ),
    "a branch on failure fails itself": Case("ac", "a!c", FAILED, "ac"),
    "a branch on failure that is skipped for another reason": Case("abc", "a!c b>c", FAILED, "ab"),
    "a branch on failure is not needed": Case("ac", "a!c", SUCCESS),
    "a branch on two failures, of which one was": Case(
        "abxc", "a>x b>x a!c b!c", SUCCESS, "a", {"x": LET}
    ),
    "its result is optional": Case("ab", "a?b", SUCCESS, "a"),
    "its result is optional to one and needed by another": Case("abc", "a?b a>c", FAILED, "a"),
    "somebody only waits for its end": Case("ac", "a.c", FAILED, "a"),
    "somebody only waits for the end of what is skipped": Case("abc", "a>b b.c", FAILED, "a"),
    "a race goes on, and somebody waits for the end": Case(
        "abxc", "a>x b>x a.c", SUCCESS, "a", {"x": LET}
    ),
    "a long branch of a race is skipped": Case(
        "abcdx", "a>b b>c c>x d>x", SUCCESS, "a", {"x": LET}
    ),
    "a long branch of a race is skipped, of which one more was wanted": Case(
        "abcdxe", "a>b b>c c>x d>x b>e", FAILED, "a", {"x": LET}
    ),
}


def drawn(text: str) -> list[Link]:
    found: list[Link] = []
    for pair in text.split():
        kind = KINDS[pair[1]]
        argument = "n" if kind is EdgeKind.COMPLETION else ""
        found.append(Link(member(pair[0]), member(pair[2]), kind, argument=argument))
    return found


async def played(desk: FlowDesk, fails: str) -> FlowSnapshot:
    """Work until nothing is left; the answer after the last end."""
    doomed = {member(name) for name in fails}
    while True:
        await desk.dispatch()
        leases = await desk.claim(1)
        if not leases:
            return await desk.engine.flows.status(FLOW)
        assert (await desk.engine.flows.status(FLOW)).outcome is FlowOutcome.PENDING
        outcomes: list[Outcome] = [
            Failed(lease, BROKEN) if lease.id in doomed else Completed(lease, b"1")
            for lease in leases
        ]
        await desk.engine.finish(outcomes)


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("name", TABLE)
async def test_the_outcome_of_a_flow(desk: FlowDesk, name: str, is_known: bool) -> None:
    case = TABLE[name]
    if is_known:
        desk.engine.known.begin()
    await desk.draw(plan(case.members, drawn(case.edges), policies=case.joins))
    seen = await played(desk, case.fails)
    assert (seen.outcome, seen.flow.settled) == (case.outcome, True)
    # It is judged with the last end, and kept.
    assert stored_outcome(await desk.flow()) is case.outcome


async def test_the_state_stays_what_it_is_counted_as(desk: FlowDesk) -> None:
    await desk.draw(plan("abx", "a>x b>x", policies={"x": RACE}))
    seen = await played(desk, "")
    assert (seen.state, seen.summary.public_flow_state) == ("failed", "failed")
    assert (seen.outcome, seen.summary.members_cancelled) == (SUCCESS, 1)


async def test_a_cancelled_flow_is_cancelled(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.engine.flows.cancel(FLOW, CancelPolicy.CANCEL_ALL)
    assert (await desk.engine.flows.status(FLOW)).outcome is FlowOutcome.CANCELLED
    await desk.dispatch()
    assert (await desk.engine.flows.status(FLOW)).outcome is FlowOutcome.CANCELLED


async def test_whoever_cancels_a_member_is_no_join(desk: FlowDesk) -> None:
    await desk.draw(plan("ab"))
    await desk.ended("a")
    await desk.engine.cancel(member("b"), CancelReason.SATISFIED)
    await desk.dispatch()
    assert (await desk.engine.flows.status(FLOW)).outcome is FAILED


async def test_a_flow_is_judged_again_after_a_replay(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    assert (await played(desk, "a")).outcome is FAILED
    await desk.engine.replay(member("a"), downstream=True)
    assert (await desk.engine.flows.status(FLOW)).outcome is FlowOutcome.PENDING
    assert (await played(desk, "")).outcome is SUCCESS


async def test_a_later_life_is_not_absorbed_by_what_an_earlier_one_did(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    assert (await played(desk, "")).outcome is SUCCESS
    await desk.engine.replay(member("a"))
    assert (await played(desk, "a")).outcome is FAILED


async def test_one_that_was_settled_by_an_earlier_version_is_judged_when_it_is_asked_for(
    desk: FlowDesk, raw: Raw
) -> None:
    await desk.draw(plan("abx", "a>x b>x", policies={"x": RACE}))
    await played(desk, "")
    flow = await desk.flow()
    summary = msgspec.json.decode(flow.summary)
    del summary["outcome"]
    await raw.write(flow, "summary", msgspec.json.encode(summary).decode())
    assert stored_outcome(await desk.flow()) is FlowOutcome.PENDING
    assert (await desk.engine.flows.status(FLOW)).outcome is SUCCESS


async def test_losers_are_read_in_pages(desk: FlowDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_outcomes, "PAGE", 2)
    names = "abcdefgh"
    edges = " ".join(f"{name}>x" for name in names)
    await desk.draw(plan([*names, "x"], edges, policies={"x": RACE}))
    seen = await played(desk, "")
    assert (seen.outcome, seen.summary.members_cancelled) == (SUCCESS, 7)


# -- the rule by itself -------------------------------------------------------------------------


def row(name: str | int, state: State = State.FAILED, *, replays: int = 0) -> Execution:
    return Execution(
        id=member(name),
        namespace="n",
        lane="l",
        kind="k",
        route="l k",
        creator="",
        created_ms=START_MS,
        updated_ms=START_MS,
        policy="",
        state=state,
        reason=Reason.NONE,
        replay_count=replays,
    )


def edge(link: Link, state: EdgeState = EdgeState.IMPOSSIBLE, generation: int = 0) -> Edge:
    return Edge(
        flow=FLOW,
        upstream=link.upstream,
        downstream=link.downstream,
        kind=link.kind,
        state=state,
        generation=generation,
    )


def test_a_chain_of_thousands_that_is_skipped_is_judged_without_recursion() -> None:
    size = 20_000
    ids = list(range(1_000, 1_000 + size))
    chain = [edge(Link(member(up), member(up + 1))) for up in ids]
    skipped = {member(each) for each in ids[1:]}
    # The one after the last went on, because it was one of several.
    assert is_absorbed([row(ids[0])], skipped, chain)
    assert not is_absorbed([row(ids[0])], {*skipped, member(ids[-1] + 1)}, chain)


@pytest.mark.parametrize("reason", CancelReason)
def test_only_a_join_makes_losers(reason: CancelReason) -> None:
    cancelled = row("a", State.CANCELLED)
    loser = msgspec.structs.replace(
        cancelled, outcome_category=Source.FLOW_CASCADE, outcome_detail=reason
    )
    assert is_loser(loser)
    assert is_absorbed([loser], [], [])
    for other in (
        msgspec.structs.replace(loser, outcome_category=Source.OPERATOR),
        msgspec.structs.replace(loser, outcome_detail="flow_cancelled"),
        msgspec.structs.replace(loser, state=State.FAILED),
    ):
        assert not is_loser(other)
        assert not is_absorbed([other], [], [])


def test_an_edge_of_an_earlier_generation_absorbs_nothing() -> None:
    (link,) = links("a>b")
    satisfied = edge(link, EdgeState.SATISFIED, 0)
    assert not is_absorbed([row("a", replays=1)], [], [satisfied])
    assert is_absorbed(
        [row("a", replays=1)], [], [msgspec.structs.replace(satisfied, generation=1)]
    )
    assert is_absorbed([row("a", replays=1)], [], [edge(link, EdgeState.PENDING)])
