"""From a plan to records: what is refused and in which order, and what is made."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from flowfabric.core.flow.graph import Link, Policy, check_circles, draw
from flowfabric.core.flow.model import EdgeKind, EdgeState, GroupState, Join, OnSatisfied
from flowfabric.core.ids import execution_id, flow_partition, uuid7
from flowfabric.core.states import State
from flowfabric.errors import InvalidGraph, InvalidInput
from flowfabric.testing.clock import START_MS
from flowfabric.testing.flows import COUNTS, FLOW, flow_id, links, member, order, plan

NOW = START_MS


def refusal(members: str, edges: str | list[Link]) -> str:
    with pytest.raises(InvalidGraph) as raised:
        draw(plan(members, edges), NOW, COUNTS)
    return raised.value.code


@pytest.mark.parametrize(
    ("edges", "code"),
    [
        ("a>a", "self_referencing_edge"),
        ("a>z", "execution_not_in_flow"),
        ("z>a", "execution_not_in_flow"),
        ("a>b a>b", "dependency_already_exists"),
        ("a>b b>a", "cycle_detected"),
        ("a>b b>c c>d d>b", "cycle_detected"),
        ("a>a z>z", "self_referencing_edge"),
        ("a>b b>a a>z", "execution_not_in_flow"),
        ("a>b b>a a>b", "dependency_already_exists"),
    ],
)
def test_what_is_no_graph_is_refused_by_name(edges: str, code: str) -> None:
    assert refusal("abcd", edges) == code


def test_a_member_of_another_partition_is_refused() -> None:
    others = (flow_id(number) for number in range(2, 99))
    other = next(o for o in others if flow_partition(o, COUNTS) != flow_partition(FLOW, COUNTS))
    mixed = msgspec.structs.replace(plan("a"), orders=[order("a"), order("b", other)])
    with pytest.raises(InvalidInput) as raised:
        draw(mixed, NOW, COUNTS)
    assert raised.value.code == "invalid_partition_index"


def test_a_long_chain_is_no_circle_and_one_edge_back_makes_it_one() -> None:
    ids = [execution_id(7, uuid7(NOW, number)) for number in range(20_000)]
    chain = list(pairwise(ids))
    check_circles(chain)
    with pytest.raises(InvalidGraph) as raised:
        check_circles([*chain, (ids[-1], ids[0])])
    assert raised.value.code == "cycle_detected"


def test_members_that_wait_are_held_and_the_others_are_not() -> None:
    drawn = draw(plan("abcd", "a>b a>c b>d c>d"), NOW, COUNTS)
    states = {m.execution.id: m.execution.state for m in drawn.members}
    blocked = State.BLOCKED_DEPENDENCIES
    assert states == {
        member("a"): State.WAITING,
        member("b"): blocked,
        member("c"): blocked,
        member("d"): blocked,
    }
    assert {m.execution.flow for m in drawn.members} == {FLOW}
    assert (drawn.flow.total, drawn.flow.edges, drawn.flow.graph_revision) == (4, 4, 8)
    assert {(g.downstream, g.n, g.sealed, g.state) for g in drawn.groups} == {
        (member("b"), 1, True, GroupState.PENDING),
        (member("c"), 1, True, GroupState.PENDING),
        (member("d"), 2, True, GroupState.PENDING),
    }
    assert {(e.upstream, e.downstream, e.position, e.state) for e in drawn.edges} == {
        (member("a"), member("b"), 0, EdgeState.PENDING),
        (member("a"), member("c"), 0, EdgeState.PENDING),
        (member("b"), member("d"), 0, EdgeState.PENDING),
        (member("c"), member("d"), 1, EdgeState.PENDING),
    }


def test_all_members_of_a_staged_flow_are_held() -> None:
    drawn = draw(plan("ab", "a>b"), NOW, COUNTS, is_staged=True)
    assert {m.execution.state for m in drawn.members} == {State.BLOCKED_DEPENDENCIES}
    assert not drawn.flow.is_open


@pytest.mark.case("FL-044")
@pytest.mark.parametrize("k", [0, -1, 4])
def test_a_quorum_that_cannot_be_is_refused(k: int) -> None:
    joined = {"d": Policy(Join.QUORUM, k, OnSatisfied.LET_RUN)}
    with pytest.raises(InvalidInput, match="at least 1") as raised:
        draw(plan("abcd", "a>d b>d c>d", policies=joined), NOW, COUNTS)
    assert raised.value.code == "invalid_input"


def test_a_policy_of_a_member_that_waits_for_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput):
        draw(plan("ab", "a>b", policies={"a": Policy(Join.ANY_OF)}), NOW, COUNTS)


def test_an_edge_that_only_orders_passes_nothing() -> None:
    ordered = [Link(member("a"), member("b"), EdgeKind.ORDER, argument="x")]
    with pytest.raises(InvalidInput):
        draw(plan("ab", ordered), NOW, COUNTS)


def test_policies_are_kept_by_group() -> None:
    joined = {"c": Policy(Join.QUORUM, 2, OnSatisfied.CANCEL_REMAINING)}
    drawn = draw(plan("abc", links("a>c b>c"), policies=joined), NOW, COUNTS)
    group = drawn.groups[0]
    assert (group.join, group.k, group.on_satisfied) == ("quorum", 2, "cancel_remaining")
