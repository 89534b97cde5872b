"""A record of a flow that cannot be read, or is gone, is named by every read that would show it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from flowfabric.client import flow_handle
from flowfabric.client.client import Client
from flowfabric.core.flow.model import Edge, Flow, Group
from flowfabric.core.ids import public_id
from flowfabric.core.model import Execution
from flowfabric.engine.flow_reading import Direction
from flowfabric.errors import Corrupt, FlowNotFound
from flowfabric.testing.flows import FLOW, member, plan
from tests.corrupter import Raw
from tests.flow.desk import FlowDesk

Read = Callable[[FlowDesk], Awaitable[object]]


async def wait(desk: FlowDesk) -> Flow:
    client = Client(desk.engine)
    try:
        return await client.flow_handle(FLOW).wait()
    finally:
        await client.close()


ABOUT_THE_FLOW: dict[str, Read] = {
    "describe": lambda desk: desk.engine.flows.read.describe(FLOW),
    "flow": lambda desk: desk.engine.flows.flow(FLOW),
    "status": lambda desk: desk.engine.flows.status(FLOW),
    "members": lambda desk: desk.engine.flows.read.members(FLOW),
    "graph": lambda desk: desk.engine.flows.picture(FLOW),
    "cancel": lambda desk: desk.engine.flows.cancel(FLOW),
    "wait": wait,
}
ABOUT_ITS_EDGES: dict[str, Read] = {
    "incoming": lambda desk: desk.engine.flows.read.edges(member("c"), Direction.INCOMING),
    "outgoing": lambda desk: desk.engine.flows.read.edges(member("a"), Direction.OUTGOING),
    "edge": lambda desk: desk.engine.flows.read.edge(FLOW, member("a"), member("c")),
    "graph": lambda desk: desk.engine.flows.picture(FLOW),
    "explain": lambda desk: desk.engine.read.explain(member("c")),
    "eligibility": lambda desk: desk.engine.read.eligibility(member("c")),
    "wait": wait,
}


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_handle, "LOOK_SECONDS", 0.0)


@pytest.mark.parametrize("read", ABOUT_THE_FLOW)
async def test_a_flow_that_cannot_be_read_is_not_one_that_is_not_there(
    desk: FlowDesk, raw: Raw, read: str
) -> None:
    with pytest.raises(FlowNotFound):
        await desk.engine.flows.flow(FLOW)
    await desk.draw(plan("abc", "a>c b>c"))
    await raw.write(await desk.flow(), "state", "melted")
    with pytest.raises(Corrupt, match=f"flow {FLOW} cannot be read: column state: ") as told:
        await ABOUT_THE_FLOW[read](desk)
    assert told.value.details["flow"] == FLOW


@pytest.mark.parametrize("read", ABOUT_ITS_EDGES)
async def test_an_edge_that_cannot_be_read_is_named_in_every_list(
    desk: FlowDesk, raw: Raw, read: str
) -> None:
    await desk.draw(plan("abc", "a>c b>c"))
    edge = await desk.edge("a", "c")
    await raw.write(edge, "state", "melted")
    with pytest.raises(Corrupt, match="column state: ") as told:
        await ABOUT_ITS_EDGES[read](desk)
    name = f"{public_id(member('a'))} {public_id(member('c'))} start"
    assert told.value.details == {"flow": FLOW, "edge": name}
    assert name in str(told.value)


async def _edge(desk: FlowDesk) -> Edge:
    return await desk.edge("a", "c")


async def _group(desk: FlowDesk) -> Group:
    return await desk.group("c")


async def _member(desk: FlowDesk) -> Execution:
    return await desk.member("a")


GONE: dict[str, Callable[[FlowDesk], Awaitable[Flow | Edge | Group | Execution]]] = {
    "edge": _edge,
    "group": _group,
    "execution": _member,
}


@pytest.mark.parametrize("kind", GONE)
async def test_a_record_that_others_name_and_that_is_gone_is_missed(
    desk: FlowDesk, raw: Raw, kind: str
) -> None:
    await desk.draw(plan("abc", "a>c b>c"))
    await raw.remove(await GONE[kind](desk))
    with pytest.raises(Corrupt, match="missing"):
        await desk.engine.read.explain(member("c"))


async def test_a_flow_misses_edges_that_are_gone(desk: FlowDesk, raw: Raw) -> None:
    await desk.draw(plan("abc", "a>c b>c"))
    await raw.remove(await desk.edge("a", "c"))
    with pytest.raises(Corrupt, match=f"flow {FLOW} cannot be read: 1 of 2 edges are missing"):
        await desk.engine.flows.picture(FLOW)


@pytest.mark.parametrize("read", ["graph", "wait"])
async def test_a_flow_misses_members_that_are_gone(desk: FlowDesk, raw: Raw, read: str) -> None:
    await desk.draw(plan("abc", "a>c b>c"))
    await raw.remove(await desk.member("c"))
    with pytest.raises(Corrupt, match="missing"):
        await ABOUT_THE_FLOW[read](desk)


async def test_who_waits_for_a_flow_that_is_sound_is_answered(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.ended("a")
    await desk.ended("b")
    assert (await wait(desk)).completed == 2


async def test_a_member_misses_its_flow(desk: FlowDesk, raw: Raw) -> None:
    await desk.draw(plan("ab", "a>b"))
    await raw.remove(await desk.flow())
    with pytest.raises(Corrupt, match=f"flow {FLOW} cannot be read: the record is missing"):
        await desk.engine.read.explain(member("b"))
