"""Query plans of the statements about flows: one trip each, and rows are found by an index."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from flowfabric.core.flow.changes import FlowPatch, Note, Resolution
from flowfabric.core.flow.model import EdgeState
from flowfabric.core.flow.views import FlowQuery, Members, Sight
from flowfabric.core.operator import Source, cancel
from flowfabric.core.states import Outcome, State
from flowfabric.core.transition import Changeset
from flowfabric.store.postgres import PostgresStore
from flowfabric.store.postgres.driver import Connection, Record
from flowfabric.testing import VirtualClock
from flowfabric.testing.conformance.flow_steps import (
    add_lines,
    drawn,
    flow_of,
    ids,
    put_flow,
    take_flows,
    whole,
)
from flowfabric.testing.conformance.flows_pending import line
from flowfabric.testing.conformance.steps import head
from flowfabric.testing.flows import FLOW, flow_id, member, plan
from tests.store.postgres.desk import Desk
from tests.store.postgres.rehearsal import count_pages
from tests.store.postgres.test_plans import FILL, Scene, nodes

FINISHED = 5_000
EDGES = """INSERT INTO edge SELECT '', 'up' || x, 'down' || x, 'start', '', 0, '', 1, '',
    CASE WHEN x % 100 = 0 THEN 'pending' ELSE 'satisfied' END, 0, -1, '', NULL
    FROM generate_series(1, $1) AS x"""
# One flow that has nearly everything there is, and one upstream that everybody waits for.
ONE_FLOW = """INSERT INTO execution
    (id, namespace, lane, kind, route, creator, created_ms, policy, state, reason, updated_ms,
     payload,
     flow)
    SELECT '{fp:9}:one' || x, 'default', 'main', 'greet', 'main greet', 'tests', x, '',
           'completed', 'none', x,
           '', $2 FROM generate_series(1, $1) AS x"""
ONE_UPSTREAM = """INSERT INTO edge SELECT $2, 'up', 'down' || x, 'start', '', 0, '', 1, '',
    'satisfied', 0, -1, '', NULL FROM generate_series(1, $1) AS x"""
MANY_LINES = 2_000
FEW_PAGES = 25
LINES = """INSERT INTO line SELECT $1, x, x::text, 'ended', '', 0, '', 0, 0
    FROM generate_series(1, $2) AS x"""
SETTLED = """INSERT INTO flow SELECT (jsonb_populate_record(f,
    jsonb_build_object('id', 'x' || n, 'settled', true))).*
    FROM flow AS f, generate_series(1, $1) AS n WHERE f.id = $2"""
TABLES = {"execution", "log", "flow", "edge", "edge_group", "line"}

ANALYZED = {"large": ("execution", "edge"), "skewed": ("execution", "edge", "line")}

Call = Callable[[Scene], Awaitable[object]]


async def fill(desk: Desk, kind: str) -> None:
    """Rows of this kind of store; the server knows of them if `kind` does not say otherwise."""
    raw = await desk.raw()
    if kind == "large":
        await raw.execute(FILL, FINISHED)
        await raw.execute(EDGES, FINISHED)
    elif kind.startswith("skewed"):
        await raw.execute(ONE_FLOW, FINISHED, flow_id(70))
        await raw.execute(ONE_UPSTREAM, FINISHED, flow_id(70))
        await raw.execute(LINES, flow_id(70), FINISHED)
    for table in ANALYZED.get(kind, ()):
        await raw.execute(f"VACUUM ANALYZE {table}")


@pytest.fixture(params=["large", "new", "skewed", "skewed, not analyzed"])
async def scene(
    request: pytest.FixtureRequest,
    desk: Desk,
    store: PostgresStore,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> Scene:
    """A few flows, beside much that is finished, beside one that is big, or in a new schema."""
    ran: list[tuple[str, tuple[object, ...]]] = []
    rightly = Connection.ask

    async def caught(connection: Connection, text: str, *arguments: object) -> list[Record]:
        ran.append((text, arguments))
        return await rightly(connection, text, *arguments)

    monkeypatch.setattr(Connection, "ask", caught)
    await fill(desk, request.param)
    for number in range(1, 10):
        await put_flow(store, clock, plan("abc", "a>b b>c", flow=flow_id(number)))
    await add_lines(store, clock, line(1), line(2))
    return Scene(store, clock, [], ran)


def turn(scene: Scene) -> Awaitable[object]:
    return take_flows(scene.store, scene.clock, after=flow_id(5))


def turn_of_one(scene: Scene) -> Awaitable[object]:
    return take_flows(scene.store, scene.clock, only=(FLOW,))


def graph(scene: Scene) -> Awaitable[object]:
    a, b = member("a"), member("b")
    page = Members(states=(State.WAITING,))
    sight = Sight(flow=FLOW, heads=[a], leaving=[a], entering=[b], ends=True, groups=[b])
    other = Sight(flow=flow_id(2), members=page, lines=True, whole=True)
    return scene.store.graph([sight, other])


async def commit(scene: Scene) -> None:
    """Everything that a changeset can hold, and a new flow beside it."""
    now_ms = scene.clock.now_ms()
    made = drawn(plan("ab", "a>b"), scene.clock)
    edge, new = made.edges[0], drawn(plan("zy", "z>y"), scene.clock)
    row = await head(scene.store, member("a"))
    changes = Changeset(
        transitions=[cancel(row, now_ms, "", source=Source.OPERATOR)],
        flows=[FlowPatch(FLOW, (await flow_of(scene.store)).rev, {"completed": 1})],
        members=new.members,
        edges=new.edges,
        resolved=[Resolution(*edge.key, EdgeState.IMPOSSIBLE, 0, -1, Outcome.FAILED, 1)],
        groups=made.groups,
        lines=[line(3)],
        done=[line(1)],
        notes=[Note(member("a"), "noted", {})],
    )
    batch = [changes, whole(drawn(plan("ab", "a>b", flow=flow_id(50)), scene.clock))]
    scene.ran.clear()
    assert await scene.store.commit_each(batch, now_ms) == [True, True]


async def test_s1_3_flows_that_are_settled_are_not_walked_for_those_that_are_not(
    scene: Scene, desk: Desk
) -> None:
    raw = await desk.raw()
    await raw.execute(SETTLED, FINISHED, FLOW)
    await raw.execute("VACUUM ANALYZE flow")
    plans = await scene.plans(scene.store.find_flows(FlowQuery(unsettled=True)))
    used = {node.get("Index Name") for found in plans for node in found}
    walked = [node for found in plans for node in found if node["Node Type"] == "Seq Scan"]
    assert "flow_unsettled" in used
    assert [node for node in walked if node.get("Relation Name") in TABLES] == []


CALLS: list[Call] = [turn, turn_of_one, graph, commit]


@pytest.mark.parametrize("call", CALLS)
async def test_no_table_is_walked_from_end_to_end(scene: Scene, call: Call) -> None:
    for found in await scene.plans(call(scene)):
        walked = [node for node in found if node["Node Type"] == "Seq Scan"]
        assert not [n for n in walked if n.get("Relation Name") in TABLES], found
        blind = [
            node
            for node in found
            if str(node["Node Type"]).startswith("Index")
            and node.get("Relation Name") in TABLES
            and "Index Cond" not in node
        ]
        assert not blind


INDEXES: list[tuple[Call, set[str]]] = [
    (turn, {"flow_due", "line_pkey", "flow_pkey"}),
    (turn_of_one, {"line_pkey", "flow_pkey"}),
    (graph, {"flow_pkey", "edge_leaving", "edge_pkey", "edge_group_pkey"}),
    (graph, {"execution_flow", "execution_pkey", "line_pkey"}),
    (commit, {"flow_pkey", "execution_pkey", "edge_pkey", "line_pkey"}),
]


@pytest.mark.parametrize(("call", "indexes"), INDEXES)
async def test_rows_are_found_by_the_indexes_made_for_it(
    scene: Scene, call: Call, indexes: set[str]
) -> None:
    plans = await scene.plans(call(scene))
    assert indexes <= {str(node.get("Index Name")) for found in plans for node in found}


async def test_a_turn_stops_at_its_limit(scene: Scene) -> None:
    """Below a limit there is no sort: it would look at every flow, for a few."""
    for found in await scene.plans(turn(scene)):
        for limit in (node for node in found if node["Node Type"] == "Limit"):
            assert not any(node["Node Type"] == "Sort" for node in nodes(limit)), limit


async def test_a_round_does_not_walk_on_over_lines_behind_where_it_began(
    desk: Desk, store: PostgresStore, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows = sorted(flow_id(number) for number in range(1, 4))
    for flow in flows:
        await put_flow(store, clock, plan("a", flow=flow))
    await (await desk.raw()).execute(LINES, flows[2], MANY_LINES)
    counted = count_pages(monkeypatch, "peeked AS", {"line_pkey"})
    for found in ([flows[2]], []):
        assert ids(await take_flows(store, clock, after=flows[1], lines=1)) == found
    assert max(counted) < FEW_PAGES


@pytest.mark.parametrize("call", CALLS)
async def test_each_verb_is_one_trip(scene: Scene, call: Call) -> None:
    scene.ran.clear()
    await call(scene)
    assert len(scene.ran) == 1
