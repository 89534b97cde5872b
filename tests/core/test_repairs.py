"""Repairs: which times of a flow are set right, and which are left as they are."""

from __future__ import annotations

import msgspec
import pytest

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.graph import draw
from flowfabric.core.flow.model import Flow, FlowState
from flowfabric.core.model import Value
from flowfabric.core.repairs import repair_flow
from flowfabric.testing.flows import COUNTS, FLOW, plan

NOW = 1_000
DEADLINE = NOW + 50


def flow(**columns: Value) -> Flow:
    """One whose deadline has no timer."""
    made = draw(plan("a", deadline_ms=DEADLINE), NOW, COUNTS).flow
    return msgspec.structs.replace(made, due_ms=None, **columns)


@pytest.mark.parametrize("due_ms", [None, DEADLINE + 1])
def test_a_deadline_gets_its_timer(due_ms: int | None) -> None:
    row = msgspec.structs.replace(flow(), due_ms=due_ms)
    assert repair_flow(row, NOW) == FlowPatch(FLOW, row.rev, {"due_ms": DEADLINE})


@pytest.mark.parametrize("due_ms", [DEADLINE - 1, DEADLINE])
def test_a_timer_in_time_stays(due_ms: int) -> None:
    assert repair_flow(msgspec.structs.replace(flow(), due_ms=due_ms), NOW) is None


def test_a_deadline_that_has_passed_was_served() -> None:
    assert repair_flow(flow(), DEADLINE - 1) is not None
    assert repair_flow(flow(), DEADLINE) is None


@pytest.mark.parametrize(
    "columns",
    [
        {"deadline_ms": None},
        {"parked": "it is broken"},
        {"settled": True, "purge_ms": 9_000},
        {"state": FlowState.CANCELLED},
    ],
    ids=lambda columns: next(iter(columns)),
)
def test_a_flow_whose_deadline_ends_nothing_gets_no_timer(columns: dict[str, Value]) -> None:
    assert repair_flow(flow(**columns), NOW) is None
