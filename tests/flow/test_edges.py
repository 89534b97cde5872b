"""Kinds of edges against outcomes: every pair."""

from __future__ import annotations

import pytest

from flowfabric.core.flow.edges import Bucket, bucket, outcome_of, verdict, wants_success
from flowfabric.core.flow.model import Edge, EdgeKind, EdgeState
from flowfabric.core.states import Outcome
from flowfabric.testing.flows import FLOW, member

ENDS = [outcome for outcome in Outcome if outcome is not Outcome.NONE]
WRONG = {Outcome.FAILED, Outcome.CANCELLED, Outcome.EXPIRED}

SATISFIED_BY: dict[EdgeKind, set[Outcome]] = {
    EdgeKind.SUCCESS_ONLY: {Outcome.SUCCESS},
    EdgeKind.FAILURE: WRONG,
    EdgeKind.COMPLETION: set(ENDS),
    EdgeKind.ORDER: set(ENDS),
}


@pytest.mark.case("FL-027")
@pytest.mark.parametrize("kind", EdgeKind)
@pytest.mark.parametrize("outcome", ENDS)
def test_what_an_end_means_for_an_edge(kind: EdgeKind, outcome: Outcome) -> None:
    expected = outcome in SATISFIED_BY[kind]
    assert (verdict(kind, outcome) is EdgeState.SATISFIED) is expected
    assert (verdict(kind, outcome) is EdgeState.IMPOSSIBLE) is not expected


@pytest.mark.parametrize(
    ("kind", "argument", "wants"),
    [
        (EdgeKind.SUCCESS_ONLY, "", True),
        (EdgeKind.SUCCESS_ONLY, "n", True),
        (EdgeKind.COMPLETION, "", False),
        (EdgeKind.COMPLETION, "n", True),
        (EdgeKind.FAILURE, "", False),
        (EdgeKind.ORDER, "", False),
    ],
)
def test_which_edges_want_a_success(kind: EdgeKind, argument: str, wants: bool) -> None:
    a, b = member("a"), member("b")
    edge = Edge(flow=FLOW, upstream=a, downstream=b, kind=kind, argument=argument)
    assert wants_success(edge) is wants


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("success", Bucket.SUCCEEDED),
        ("skipped", Bucket.SKIPPED),
        ("failed", Bucket.FAILED),
        ("cancelled", Bucket.FAILED),
        ("expired", Bucket.FAILED),
        ("melted", Bucket.FAILED),
        ("", Bucket.FAILED),
    ],
)
def test_s2_10_outcomes_are_counted_in_three_buckets(text: str, counted: Bucket) -> None:
    outcome = outcome_of(text)
    assert bucket(verdict(EdgeKind.SUCCESS_ONLY, outcome), outcome) is counted


def test_an_upstream_that_succeeded_is_no_failure_for_its_clean_up() -> None:
    state = verdict(EdgeKind.FAILURE, Outcome.SUCCESS)
    assert bucket(state, Outcome.SUCCESS) is Bucket.SKIPPED


def test_any_end_counts_as_success_where_any_end_will_do() -> None:
    for outcome in ENDS:
        assert bucket(verdict(EdgeKind.COMPLETION, outcome), outcome) is Bucket.SUCCEEDED
