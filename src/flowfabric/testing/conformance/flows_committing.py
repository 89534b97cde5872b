"""Changesets about flows: written whole under the flow's revision, or not at all."""

from __future__ import annotations

from operator import attrgetter

import msgspec
import pytest

from flowfabric.core.flow.changes import FlowPatch, Note, Resolution
from flowfabric.core.flow.model import EdgeState, GroupState, Line, LineKind, line_id
from flowfabric.core.flow.views import Members, Sight
from flowfabric.core.model import Query, Value
from flowfabric.core.operator import Source, cancel
from flowfabric.core.states import Outcome, State
from flowfabric.core.transition import Changeset
from flowfabric.errors import IllegalTransition
from flowfabric.store.protocol import Store
from flowfabric.testing import build
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.flow_steps import (
    drawn,
    everything,
    flow_of,
    look,
    patch,
    put_flow,
    whole,
)
from flowfabric.testing.conformance.steps import head, loaded, put, take
from flowfabric.testing.flows import FLOW, flow_id, member, order, plan

DIAMOND = "a>b a>c b>d c>d"


def line(number: int, *, flow: str = FLOW, at_ms: int = 5, next_try_ms: int = 0) -> Line:
    return Line(
        flow=flow_id(1) if flow == FLOW else flow_id(2),
        at_ms=at_ms,
        id=line_id(LineKind.ENDED, str(number)),
        kind=LineKind.ENDED,
        execution=member(number),
        generation=2,
        about="success",
        next_try_ms=next_try_ms,
    )


async def test_a_flow_is_read_back_as_it_was_written(store: Store, clock: VirtualClock) -> None:
    made = await put_flow(store, clock, plan("abcd", DIAMOND))
    found = await everything(store)
    assert found.flow == made.flow
    assert found.members == sorted((m.execution for m in made.members), key=lambda row: row.id)
    in_order = attrgetter("upstream", "downstream", "group")
    assert found.edges == sorted(made.edges, key=in_order)
    assert found.groups == sorted(made.groups, key=attrgetter("downstream", "name"))
    assert found.lines == []
    assert (await loaded(store, member("a"))).payload == b"{}"
    assert (await head(store, member("b"))).state is State.BLOCKED_DEPENDENCIES


async def test_only_members_that_wait_for_nothing_can_be_claimed(
    store: Store, clock: VirtualClock
) -> None:
    await put_flow(store, clock, plan("abcd", DIAMOND))
    leases = await store.claim(build.ask(clock.now_ms(), limit=10))
    assert [lease.id for lease in leases] == [member("a")]
    assert leases[0].head.flow == FLOW


async def test_a_flow_that_is_there_is_not_made_again(store: Store, clock: VirtualClock) -> None:
    made = await put_flow(store, clock, plan("ab", "a>b"))
    before = await everything(store)
    assert not await store.commit(whole(made), clock.now_ms())
    other = Changeset(new_flows=[made.flow], members=drawn(plan("z"), clock).members)
    assert not await store.commit(other, clock.now_ms())
    assert await everything(store) == before


async def test_a_member_that_is_there_keeps_everything_out(
    store: Store, clock: VirtualClock
) -> None:
    await put(store, clock, order("b"))
    before = await everything(store)
    assert not await store.commit(whole(drawn(plan("ab", "a>b"), clock)), clock.now_ms())
    assert await everything(store) == before


async def test_a_patch_writes_what_it_names_and_raises_the_revision(
    store: Store, clock: VirtualClock
) -> None:
    made = await put_flow(store, clock, plan("ab", "a>b"))
    columns: dict[str, Value] = {"completed": 1, "due_ms": 77, "requests": "t1 t2"}
    after = await patch(store, clock, **columns)
    assert after == msgspec.structs.replace(made.flow, **columns, rev=made.flow.rev + 1)
    assert (await patch(store, clock)).rev == after.rev + 1


@pytest.mark.parametrize("off", [-1, 1])
async def test_another_revision_keeps_everything_out(
    store: Store, clock: VirtualClock, off: int
) -> None:
    made = await put_flow(store, clock, plan("ab", "a>b"))
    row = await head(store, member("a"))
    before = await everything(store)
    changes = Changeset(
        transitions=[cancel(row, clock.now_ms(), "no", source=Source.OPERATOR)],
        flows=[FlowPatch(FLOW, made.flow.rev + off, {"completed": 1})],
        members=drawn(plan("c"), clock).members,
        edges=[msgspec.structs.replace(made.edges[0], upstream=member("c"))],
        groups=[msgspec.structs.replace(made.groups[0], n=2)],
        lines=[line(1)],
        notes=[Note(member("a"), "noted", {})],
    )
    assert not await store.commit(changes, clock.now_ms())
    assert await everything(store) == before


async def test_a_stale_member_keeps_the_flow_as_it_was(store: Store, clock: VirtualClock) -> None:
    made = await put_flow(store, clock, plan("ab", "a>b"))
    row = msgspec.structs.replace(await head(store, member("a")), rev=9)
    before = await everything(store)
    changes = Changeset(
        transitions=[cancel(row, clock.now_ms(), "no", source=Source.OPERATOR)],
        flows=[FlowPatch(FLOW, made.flow.rev, {"completed": 1})],
        lines=[line(1)],
    )
    assert not await store.commit(changes, clock.now_ms())
    assert await everything(store) == before


async def test_edges_are_resolved_and_groups_written_whole(
    store: Store, clock: VirtualClock
) -> None:
    made = await put_flow(store, clock, plan("abc", "a>c b>c"))
    edge, other = made.edges
    after = msgspec.structs.replace(
        edge,
        state=EdgeState.SATISFIED,
        generation=3,
        attempt=2,
        outcome=Outcome.SUCCESS,
        resolved_ms=44,
    )
    group = msgspec.structs.replace(
        made.groups[0],
        n=5,
        succeeded=1,
        failed=2,
        skipped=1,
        state=GroupState.IMPOSSIBLE,
        sealed=False,
        decided_ms=44,
        cancel_owed=True,
        cancel_reason="why",
        owed="x\ny",
        join="strange",
        k=3,
    )
    resolution = Resolution(*edge.key, EdgeState.SATISFIED, 3, 2, Outcome.SUCCESS, 44)
    nobody = Resolution(
        member("q"), "start", member("r"), EdgeState.SATISFIED, 3, 2, Outcome.SUCCESS, 44
    )
    changes = Changeset(
        flows=[FlowPatch(FLOW, made.flow.rev, {})],
        resolved=[resolution, nobody],
        groups=[group],
    )
    assert await store.commit(changes, clock.now_ms())
    found = await everything(store)
    assert found.edges == [after, other]
    assert found.groups == [group]


async def test_lines_are_added_written_anew_and_removed(store: Store, clock: VirtualClock) -> None:
    made = await put_flow(store, clock, plan("ab", "a>b"))
    rev = made.flow.rev
    first, second, third = line(3, at_ms=7), line(2, at_ms=6), line(1, at_ms=6)
    lines = Changeset(flows=[FlowPatch(FLOW, rev, {})], lines=[first, second, third])
    assert await store.commit(lines, clock.now_ms())
    assert (await everything(store)).lines == [third, second, first]
    later = msgspec.structs.replace(second, failures=2, next_try_ms=99, about="other")
    moved = Changeset(
        flows=[FlowPatch(FLOW, rev + 1, {})], lines=[later], done=[first, line(8, at_ms=6)]
    )
    assert await store.commit(moved, clock.now_ms())
    assert (await everything(store)).lines == [third, later]


async def test_notes_are_lines_of_the_log_and_change_nobody(
    store: Store, clock: VirtualClock
) -> None:
    made = await put_flow(store, clock, plan("a"))
    before = await head(store, member("a"))
    changes = Changeset(
        flows=[FlowPatch(FLOW, made.flow.rev, {})],
        notes=[Note(member("a"), "dispatched", {"edges": 3}), Note(member("z"), "lost", {})],
    )
    assert await store.commit(changes, clock.now_ms())
    assert await head(store, member("a")) == before
    last = (await everything(store)).rest.events[-1]
    assert (last.execution, last.kind, last.detail) == (member("a"), "dispatched", {"edges": 3})


async def test_a_note_shows_its_member_as_the_same_changeset_leaves_it(
    store: Store, clock: VirtualClock
) -> None:
    made = await put_flow(store, clock, plan("abc"))
    heads = [await head(store, member(name)) for name in "ab"]
    changes = Changeset(
        [cancel(row, clock.now_ms(), "no", source=Source.OPERATOR) for row in heads],
        flows=[FlowPatch(FLOW, made.flow.rev, {})],
        notes=[Note(member(name), "noted", {}) for name in "abc"],
    )
    assert await store.commit(changes, clock.now_ms())
    events = (await everything(store)).rest.events
    noted = [(each.execution, each.state) for each in events if each.kind == "noted"]
    assert sorted(noted) == [
        (member("a"), State.CANCELLED),
        (member("b"), State.CANCELLED),
        (member("c"), State.WAITING),
    ]


async def test_of_several_changesets_a_refused_one_spoils_no_other(
    store: Store, clock: VirtualClock
) -> None:
    flows = [flow_id(number) for number in range(20, 24)]
    made = [await put_flow(store, clock, plan("a", flow=flow)) for flow in flows]
    revs = [each.flow.rev for each in made]
    revs[1] += 1
    batch = [
        Changeset(flows=[FlowPatch(flow, rev, {"failed": 1})])
        for flow, rev in zip(flows, revs, strict=True)
    ]
    new = whole(drawn(plan("a", flow=flow_id(30)), clock))
    answers = await store.commit_each([*batch, new], clock.now_ms())
    assert answers == [True, False, True, True, True]
    assert [(await flow_of(store, flow)).failed for flow in flows] == [1, 0, 1, 1]
    assert (await flow_of(store, flow_id(30))).total == 1
    assert await store.commit_each([], clock.now_ms()) == []


def test_a_changeset_is_about_one_flow_and_each_record_once(clock: VirtualClock) -> None:
    one, other = drawn(plan("a"), clock), drawn(plan("a", flow=flow_id(2)), clock)
    with pytest.raises(IllegalTransition):
        Changeset(new_flows=[one.flow, other.flow])
    with pytest.raises(IllegalTransition):
        Changeset(members=one.members)
    with pytest.raises(IllegalTransition):
        Changeset(flows=[FlowPatch(FLOW, 1, {"rev": 7})])
    with pytest.raises(IllegalTransition):
        Changeset(new_flows=[one.flow], members=[*one.members, *one.members])


async def test_two_changesets_of_one_flow_are_refused_together(
    store: Store, clock: VirtualClock
) -> None:
    made = await put_flow(store, clock, plan("a"))
    changes = Changeset(flows=[FlowPatch(FLOW, made.flow.rev, {})])
    with pytest.raises(IllegalTransition):
        await store.commit_each([changes, changes], clock.now_ms())
    assert await flow_of(store) == made.flow


async def test_members_of_a_flow_that_is_not_open_are_not_listed(
    store: Store, clock: VirtualClock
) -> None:
    made = drawn(plan("ab", "a>b"), clock)
    closed = msgspec.structs.replace(made.flow, is_open=False)
    await put(store, clock, build.order(1))
    hidden = msgspec.structs.replace(whole(made), new_flows=[closed])
    assert await store.commit(hidden, clock.now_ms())
    assert [row.id for row in await store.find(Query())] == [build.execution_id(1)]
    view = await look(store, Sight(flow=FLOW, members=Members()))
    assert view.members == [member("a"), member("b")]
    await patch(store, clock, is_open=True)
    assert len(await store.find(Query())) == 3
    assert len(await take(store, clock, 2)) == 2


async def test_a_member_of_a_flow_that_is_gone_is_found(store: Store, clock: VirtualClock) -> None:
    made = drawn(plan("ab"), clock)
    lost = msgspec.structs.replace(made.members[0].execution, flow=flow_id(9))
    stray = msgspec.structs.replace(made.members[0], execution=lost)
    staged = msgspec.structs.replace(made.flow, is_open=False)
    changes = Changeset(new_flows=[staged], members=[stray, *made.members[1:]])
    assert await store.commit(changes, clock.now_ms())
    assert [row.id for row in await store.find(Query())] == [member("a")]


async def test_the_key_of_a_member_is_its_own_business(store: Store, clock: VirtualClock) -> None:
    made = drawn(plan("a"), clock)
    keyed = msgspec.structs.replace(
        made.members[0], key="k", digest="d", key_until_ms=clock.now_ms() + 1_000
    )
    assert await store.commit(whole(made._replace(members=[keyed])), clock.now_ms())
    (other,) = await put(store, clock, build.order(5, key="k", digest="e"))
    assert other.id != member("a")


async def test_no_line_is_written_and_done_at_once(store: Store, clock: VirtualClock) -> None:
    await put_flow(store, clock, plan("a"))
    flow, before = await flow_of(store), await everything(store)
    both = Changeset(flows=[FlowPatch(FLOW, flow.rev, {})], lines=[line(1)], done=[line(1)])
    with pytest.raises(IllegalTransition):
        await store.commit(both, clock.now_ms())
    assert await everything(store) == before


async def test_no_member_is_in_two_changesets_of_a_call(store: Store, clock: VirtualClock) -> None:
    first, second = drawn(plan("a"), clock), drawn(plan("b", flow=flow_id(2)), clock)
    with pytest.raises(IllegalTransition):
        await store.commit_each(
            [whole(first), whole(second._replace(members=first.members))], clock.now_ms()
        )
    assert (await look(store, Sight(flow=FLOW))).flow is None
