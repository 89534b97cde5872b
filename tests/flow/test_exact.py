"""Numbers, words and texts of a graph that are almost right: refused before anything is written,
or kept as what they mean, on every store alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

import msgspec
import pytest

from flowfabric.core.flow.adding import Addition
from flowfabric.core.flow.graph import Link, Plan, Policy
from flowfabric.core.flow.model import EdgeKind, Group, GroupKey, Join, OnSatisfied
from flowfabric.core.policy import RetentionPolicy
from flowfabric.engine.flow_building import Grown
from flowfabric.errors import FlowFabricError, InvalidInput
from flowfabric.store.valkey.flows.codec import group_cells
from flowfabric.testing.build import KIND
from flowfabric.testing.faults import FaultyStore
from flowfabric.testing.flows import FLOW, flow_id, links, member, order, plan
from tests.flow.desk import FlowDesk


class Text(str):
    __slots__ = ()


def quorum(k: object) -> Policy:
    return Policy(Join.QUORUM, cast(int, k), OnSatisfied.LET_RUN)


NO_QUORUMS = [3.5, 2.0, True, "2", None]
Say = Callable[[FlowDesk, Policy], Awaitable[object]]


async def _whole(desk: FlowDesk, policy: Policy) -> object:
    return await desk.engine.flows.submit(plan("abcd", "a>d b>d c>d", policies={"d": policy}))


async def _set(desk: FlowDesk, policy: Policy) -> bool:
    await desk.engine.flows.submit(plan("d"))
    return await desk.engine.flows.build.set_policy(FLOW, member("d"), policy)


async def _add(desk: FlowDesk, policy: Policy) -> Grown:
    await desk.engine.flows.submit(plan("abc"))
    new = Addition(
        orders=[order("d")],
        links=links("a>d b>d c>d"),
        policies={GroupKey(member("d"), "start"): policy},
    )
    return await desk.engine.flows.build.add(FLOW, new)


SAY: dict[str, Say] = {"submit": _whole, "set_policy": _set, "add": _add}


@pytest.fixture
async def strict(faulty: FaultyStore, desk: FlowDesk) -> FlowDesk:
    """A desk whose store is handed nothing but the exact types of its columns."""
    strict = FlowDesk(faulty, desk.clock)
    await strict.engine.open()
    return strict


@pytest.mark.parametrize("verb", SAY)
@pytest.mark.parametrize("k", NO_QUORUMS, ids=repr)
async def test_a_quorum_that_is_no_whole_number_is_refused(
    strict: FlowDesk, verb: str, k: object
) -> None:
    with pytest.raises(InvalidInput, match="expected a whole number") as refused:
        await SAY[verb](strict, quorum(k))
    assert (refused.value.field, "k must be" in refused.value.hint) == ("k", True)


def one(**columns: object) -> Plan:
    """A plan of two, of which one thing is said in another way."""
    return msgspec.structs.replace(plan("ab", "a>b"), **columns)


def said(**columns: object) -> Plan:
    return one(orders=[msgspec.structs.replace(order("a"), **columns), order("b")])


def drawn(**columns: object) -> Plan:
    return one(links=[msgspec.structs.replace(links("a>b")[0], **columns)])


REFUSED: dict[str, Plan] = {
    "priority": said(priority=2.5),
    "lane": said(lane=7),
    "task": said(kind=None),
    "creator": said(creator=["x"]),
    "policy": said(policy=b"{}"),
    "tags[demo.x]": said(tags={"demo.x": 1}),
    "delay_until_ms": said(delay_until_ms=1e12),
    "deadline": one(deadline_ms=2e12),
    "keep_until_ms": one(keep_until_ms=1.5),
    "digest": one(digest=12),
    "retention": one(retention=RetentionPolicy(completed_ms=cast(int, 1.5))),
    "kind": drawn(kind="sometimes"),
    "group": drawn(group=3),
    "argument": drawn(argument="a\0b"),
    "join": one(policies={GroupKey(member("b"), "start"): Policy(cast(Join, "most"))}),
    "on_satisfied": one(
        policies={GroupKey(member("b"), "start"): Policy(Join.ANY_OF, 1, cast(OnSatisfied, True))}
    ),
}


@pytest.mark.parametrize("field", REFUSED)
async def test_a_column_of_another_type_is_refused_by_its_field(
    strict: FlowDesk, field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        await strict.engine.flows.submit(REFUSED[field])
    assert refused.value.field == field
    with pytest.raises(FlowFabricError, match="not found"):
        await strict.flow()


async def test_what_means_the_same_is_kept_as_the_exact_type(strict: FlowDesk) -> None:
    meant = one(
        name=Text("graph"),
        orders=[
            msgspec.structs.replace(
                order("a"), lane=Text("main"), kind=Text(KIND), tags={Text("demo.x"): Text("y")}
            ),
            order("b"),
        ],
        links=[Link(member("a"), member("b"), cast(EdgeKind, "completion"), Text("start"))],
        policies={
            GroupKey(member("b"), "start"): Policy(
                cast(Join, "quorum"), 1, cast(OnSatisfied, "let_run")
            )
        },
    )
    await strict.draw(meant)
    await strict.ended("a", outcome="failed")
    assert await strict.states("ab") == {"a": "failed", "b": "waiting"}


async def test_verbs_of_operators_take_words_by_their_text(strict: FlowDesk) -> None:
    await strict.draw(plan("ab", "a>b"))
    engine, a = strict.engine, member("a")
    await engine.block(a, cast("object", "paused_by_operator"))  # type: ignore[arg-type]
    await engine.unblock(a, cast("object", "paused_by_operator"))  # type: ignore[arg-type]
    await engine.set_lane("main", cast("object", "paused"))  # type: ignore[arg-type]
    await engine.set_lane("main", cast("object", "active"))  # type: ignore[arg-type]
    for call in (
        engine.block(a, cast("object", "tired")),  # type: ignore[arg-type]
        engine.set_lane("main", cast("object", True)),  # type: ignore[arg-type]
        engine.change_priority(a, cast(int, 2.0)),
        engine.cancel(a, cast(str, 5)),
        engine.flows.cancel(FLOW, cast("object", "half")),  # type: ignore[arg-type]
        engine.claim(["main"], cast(int, 1.5), tasks=[KIND], worker="w", token="t", ttl_ms=5_000),
    ):
        with pytest.raises(InvalidInput):
            await call


async def test_a_flow_is_not_changed_by_what_another_said_almost_so(desk: FlowDesk) -> None:
    """What is equal in Python and not the same must not be told as the same."""
    whole = Group(flow=FLOW, downstream=member("d"), join=Join.QUORUM, k=2, n=3)
    part = msgspec.structs.replace(whole, k=cast(int, 2.0))
    for group in (part, whole, msgspec.structs.replace(whole, sealed=cast(bool, 1)), whole):
        told = group_cells(group)[2]
        assert isinstance(told, str)
        assert msgspec.json.decode(told)["k"] == 2
    assert '"k":2,' in str(group_cells(whole)[2])
    other = flow_id(9)
    policies = {"d": quorum(2)}
    await desk.draw(plan("abcd", "a>d b>d c>d", flow=other, policies=policies))
    await desk.ended("a", "b", flow=other)
    assert await desk.state("d", other) == "waiting"
