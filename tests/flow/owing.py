"""Groups that owe cancels, as a crash would leave them. No test lives here."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.graph import Policy
from flowfabric.core.flow.model import Group, Join, Line, LineKind, OnSatisfied, line_id
from flowfabric.core.ids import FlowId
from flowfabric.core.transition import Changeset
from flowfabric.testing.flows import FLOW, member, plan
from tests.flow.desk import FlowDesk

FIRST = Policy(Join.ANY_OF, 1, OnSatisfied.CANCEL_REMAINING)


def owing(downstream: str | None = None, flow: FlowId = FLOW, group: str = "start") -> Line:
    execution = member("x", flow) if downstream is None else downstream
    return Line(
        flow=flow,
        at_ms=1,
        id=line_id(LineKind.CANCEL_SIBLINGS, execution, 0, group),
        kind=LineKind.CANCEL_SIBLINGS,
        execution=execution,
        about=group,
    )


def listed(names: Iterable[str], flow: FlowId = FLOW) -> str:
    return "\n".join(member(name, flow) for name in names)


async def stage(desk: FlowDesk, *lines: Line, flow: FlowId = FLOW, **columns: object) -> None:
    """A decided group of x with the upstreams a and b: these columns, these lines."""
    await desk.draw(plan("abx", "a>x b>x", policies={"x": FIRST}, flow=flow))
    found, group = await desk.flow(flow), await desk.group("x", flow)
    changed: Group = msgspec.structs.replace(group, **columns)
    changes = Changeset(flows=[FlowPatch(flow, found.rev, {})], groups=[changed], lines=lines)
    assert await desk.store.commit(changes, desk.clock.now_ms())
