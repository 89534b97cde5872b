"""Flows on a server: where their keys are, what looking for work costs, and what survives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from flowfabric.core.flow.changes import FlowPatch, Resolution
from flowfabric.core.flow.model import EdgeState, Line
from flowfabric.core.flow.views import FlowQuery, Sight
from flowfabric.core.ids import FlowId, flow_partition, uuid7
from flowfabric.core.lifecycle import complete
from flowfabric.core.states import Outcome
from flowfabric.core.transition import Changeset
from flowfabric.errors import Corrupt, IllegalTransition, StoreUnavailable
from flowfabric.store import Store, open_store
from flowfabric.store.trips import Count
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.calls import Call, command
from flowfabric.store.valkey.codec import uuid_of
from flowfabric.store.valkey.link import Reply
from flowfabric.testing.build import LANE
from flowfabric.testing.clock import START_MS, VirtualClock
from flowfabric.testing.conformance.flow_steps import (
    add_lines,
    drawn,
    everything,
    flow_of,
    ids,
    look,
    put_flow,
    take_flows,
    whole,
)
from flowfabric.testing.conformance.flows_pending import line
from flowfabric.testing.conformance.steps import apply, take
from flowfabric.testing.flows import COUNTS, FLOW, member, plan
from tests.servers import store_url

pytestmark = pytest.mark.parametrize("store_kind", ["valkey", "valkey-cluster"])

SCOPE = f"{{fp:{flow_partition(FLOW, COUNTS)}}}"


@pytest.fixture
def server(store: Store) -> ValkeyStore:
    assert isinstance(store, ValkeyStore)
    return store


async def keys(server: ValkeyStore) -> list[str]:
    """What is left of every key of a flow's partition without its prefix."""
    scope = f"{server.keys.prefix}:{SCOPE}"
    found = await server.caller.one(command(scope, "KEYS", f"{scope}*"))
    assert isinstance(found, list)
    return sorted(key.decode().removeprefix(scope) for key in found if isinstance(key, bytes))


async def write_raw(server: ValkeyStore, key: str, field: str, text: str) -> None:
    name = f"{server.keys.prefix}:{SCOPE}:{key}"
    await server.caller.one(command(name, "HSET", name, field, text))


def neighbours(count: int) -> list[FlowId]:
    """Flows of one partition."""
    home = flow_partition(FLOW, COUNTS)
    found = [FLOW]
    number = 1
    while len(found) < count:
        number += 1
        id = FlowId(uuid7(START_MS, number))
        if flow_partition(id, COUNTS) == home:
            found.append(id)
    return found


@pytest.mark.case("FL-092", "PA-021")
async def test_everything_of_a_flow_is_in_its_partition_under_names_that_say_what_it_is(
    server: ValkeyStore, clock: VirtualClock
) -> None:
    await put_flow(server, clock, plan("ab", "a>b"))
    await add_lines(server, clock, line(1, next_try_ms=clock.now_ms() + 5))
    downstream = uuid_of(member("b"))
    expected = {
        *(f":{kind}:{FLOW}" for kind in ("flow", "members", "leaving", "line", "lines", "later")),
        *(f":{kind}:{downstream}" for kind in ("edges", "groups")),
        ":flows",
        ":flow_ids",
    }
    assert expected <= set(await keys(server))


async def test_work_that_is_done_leaves_no_keys(server: ValkeyStore, clock: VirtualClock) -> None:
    made = await put_flow(server, clock, plan("ab", "a>b"))
    lease = (await take(server, clock))[0]
    await apply(server, clock, complete(lease, clock.now_ms(), b""))
    (taken,) = await take_flows(server, clock)
    resolution = Resolution(
        *made.edges[0].key, EdgeState.SATISFIED, 0, 0, Outcome.SUCCESS, clock.now_ms()
    )
    done = Changeset(
        flows=[FlowPatch(FLOW, taken.flow.rev, {"busy_until_ms": 0})],
        resolved=[resolution],
        done=taken.lines,
    )
    assert await server.commit(done, clock.now_ms())
    kinds = {key.removeprefix(":").partition(":")[0] for key in await keys(server)}
    assert "flow" in kinds
    assert kinds.isdisjoint({"line", "lines", "later", "leaving", "flows"})


async def test_looking_for_work_is_one_question_when_there_is_none(
    server: ValkeyStore, clock: VirtualClock
) -> None:
    await put_flow(server, clock, plan("ab", "a>b"))
    await add_lines(server, clock, line(1))
    assert ids(await take_flows(server, clock)) == [FLOW]
    assert await take_flows(server, clock) == []  # finds that what it was told is no longer so
    before = server.trips.count
    assert await take_flows(server, clock) == []
    assert server.trips.count.since(before) == Count(1, 1)


async def test_changesets_of_one_partition_are_one_call(
    server: ValkeyStore, clock: VirtualClock
) -> None:
    flows = neighbours(4)
    made = [
        await put_flow(server, clock, plan([number], flow=id)) for number, id in enumerate(flows)
    ]
    revs = [each.flow.rev for each in made]
    revs[2] += 1
    batch = [
        Changeset(flows=[FlowPatch(id, rev, {"failed": 1})])
        for id, rev in zip(flows, revs, strict=True)
    ]
    before = server.trips.count
    assert await server.commit_each(batch, clock.now_ms()) == [True, True, False, True]
    assert server.trips.count.since(before) == Count(1, 1)


async def test_a_changeset_of_two_partitions_is_refused(
    server: ValkeyStore, clock: VirtualClock
) -> None:
    elsewhere = FlowId(uuid7(START_MS, 2))
    assert flow_partition(elsewhere, COUNTS) != flow_partition(FLOW, COUNTS)
    foreign = drawn(plan("a", flow=elsewhere), clock).members
    with pytest.raises(IllegalTransition):
        await server.commit(
            Changeset(new_flows=[drawn(plan("a"), clock).flow], members=foreign), clock.now_ms()
        )


async def test_work_is_found_when_everything_that_was_told_is_lost(
    server: ValkeyStore, clock: VirtualClock, store_kind: str, tmp_path: Path
) -> None:
    await put_flow(server, clock, plan("a"))
    await add_lines(server, clock, line(1))
    hints = f"{server.keys.prefix}:{{flows}}"
    assert await server.caller.one(command(hints, "DEL", hints, f"{hints}:version")) == 2
    other = open_store(store_url(store_kind, tmp_path / "store.db"), clock=clock)
    await other.migrate()
    assert ids(await take_flows(other, clock)) == [FLOW]
    await other.close()


async def test_names_and_texts_of_any_kind_come_back(
    server: ValkeyStore, clock: VirtualClock
) -> None:
    made = drawn(plan("ab", "a>b"), clock)
    odd = 'x:y\t"é\N{SNOWMAN}\n'
    edge = msgspec.structs.replace(made.edges[0], group=odd, argument=odd, creator=odd)
    group = msgspec.structs.replace(made.groups[0], name=odd, owed=odd, join=odd)
    said = Line(
        flow=FLOW, at_ms=5, id=odd, kind=line(1).kind, execution=odd, about=odd, next_try_ms=3
    )
    changes = msgspec.structs.replace(whole(made), edges=[edge], groups=[group], lines=[said])
    assert await server.commit(changes, clock.now_ms())
    found = await everything(server)
    assert (found.edges, found.groups, found.lines) == ([edge], [group], [said])
    leaving = await look(server, Sight(flow=FLOW, leaving=[member("a")]))
    assert leaving.edges == [edge]
    assert ids(await take_flows(server, clock)) == [FLOW]


async def test_records_that_cannot_be_read_are_named_and_keep_no_other_back(
    server: ValkeyStore, clock: VirtualClock
) -> None:
    await put_flow(server, clock, plan("abc", "a>b a>c"))
    await add_lines(server, clock, line(1), line(2))
    up, down = uuid_of(member("a")), uuid_of(member("b"))
    await write_raw(server, f"edges:{down}", f"edge:{up}:start", '{"kind": "strange"}')
    await write_raw(server, f"groups:{down}", "start", "{")
    await write_raw(server, f"line:{FLOW}", f"1:{line(1).id}", '{"kind": 7}')
    view = await look(
        server, Sight(flow=FLOW, whole=True, lines=True, groups=[member("b"), member("c")])
    )
    assert [edge.downstream for edge in view.edges] == [member("c")]
    assert [group.downstream for group in view.groups] == [member("c")]
    assert view.lines == [line(2)]
    assert [(lost.kind, lost.name) for lost in view.unreadable] == [
        ("edge", f"{member('a')} {member('b')} start"),
        ("group", f"{member('b')} start"),
        ("line", line(1).id),
    ]


async def test_a_flow_that_cannot_be_read_is_named_and_given_to_nobody(
    server: ValkeyStore, clock: VirtualClock
) -> None:
    await put_flow(server, clock, plan("a"))
    await add_lines(server, clock, line(1))
    await write_raw(server, f"flow:{FLOW}", "state", "melted")
    view = await look(server, Sight(flow=FLOW))
    assert (view.flow, [(lost.kind, lost.name) for lost in view.unreadable]) == (
        None,
        [("flow", FLOW)],
    )
    assert await take_flows(server, clock) == []


async def test_columns_of_a_newer_program_are_passed_over(
    server: ValkeyStore, clock: VirtualClock
) -> None:
    made = await put_flow(server, clock, plan("ab", "a>b"))
    up, down = uuid_of(member("a")), uuid_of(member("b"))
    await write_raw(server, f"flow:{FLOW}", "colour", "blue")
    await write_raw(server, f"edges:{down}", f"edge:{up}:start", '{"colour": "blue"}')
    assert await flow_of(server) == made.flow
    view = await look(server, Sight(flow=FLOW, whole=True))
    assert [edge.key for edge in view.edges] == [made.edges[0].key]
    assert view.unreadable == []


async def test_a_lane_is_there_although_its_writer_died_after_the_commit(
    server: ValkeyStore, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rightly = server.caller.all

    async def dying(calls: Sequence[Call]) -> list[Reply]:
        replies = await rightly(calls)
        if any(SCOPE in call.scope for call in calls):
            raise StoreUnavailable("gone")
        return replies

    monkeypatch.setattr(server.caller, "all", dying)
    with pytest.raises(StoreUnavailable, match="gone"):
        await server.commit(whole(drawn(plan("a"), clock)), clock.now_ms())
    monkeypatch.undo()
    assert (await look(server, Sight(flow=FLOW))).flow is not None
    assert [lane.name for lane in await server.lanes("", 9)] == [LANE]


async def test_a_list_of_flows_asks_a_partition_again_only_for_what_comes_before_the_last(
    server: ValkeyStore, clock: VirtualClock
) -> None:
    """All flows but one are in one partition, so its even share of a page is not enough."""
    numbers = (FlowId(uuid7(START_MS, number)) for number in range(2, 50_000))
    here = flow_partition(FLOW, COUNTS)
    same = [FLOW, *(id for id in numbers if flow_partition(id, COUNTS) == here)][:30]
    for id in same:
        await put_flow(server, clock, plan("", flow=id))
    found = await server.find_flows(FlowQuery(limit=20))
    assert [flow.id for flow in found] == sorted(same)[:20]
    await write_raw(server, f"flow:{min(same)}", "state", "melted")
    with pytest.raises(Corrupt, match="cannot be read"):
        await server.find_flows(FlowQuery(limit=20))
    assert len(await server.find_flows(FlowQuery(after=min(same)))) == 29


async def test_a_flow_that_is_in_the_index_too_early_is_put_where_it_belongs(
    server: ValkeyStore, clock: VirtualClock
) -> None:
    at_ms = clock.now_ms() + 10
    await put_flow(server, clock, plan("a", deadline_ms=at_ms))
    index = f"{server.keys.prefix}:{SCOPE}:flows"
    name = ids_in(await server.caller.one(command(index, "ZRANGE", index, "0", "-1")))[0]
    await server.caller.one(command(index, "ZADD", index, "1", name))
    assert await take_flows(server, clock, only=(FLOW,)) == []
    score = await server.caller.one(command(index, "ZSCORE", index, name))
    assert isinstance(score, bytes)
    assert float(score) == at_ms
    clock.advance(10)
    assert ids(await take_flows(server, clock)) == [FLOW]


def ids_in(found: Reply) -> list[str]:
    assert isinstance(found, list)
    return [each.decode() for each in found if isinstance(each, bytes)]
