"""While a slot moves to another server, a function that would write there writes nothing at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.ids import flow_partition
from flowfabric.core.lifecycle import complete
from flowfabric.core.transition import Changeset
from flowfabric.store import Store
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.calls import Call, function
from flowfabric.store.valkey.flows.writing import commit_calls
from flowfabric.store.valkey.link import Reply, ReplyError, pack
from flowfabric.store.valkey.slots import slot_of
from flowfabric.store.valkey.writing import Moment, apply_calls
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.flow_steps import add_lines, drawn, everything, put_flow
from flowfabric.testing.conformance.flows_pending import line
from flowfabric.testing.conformance.steps import take
from flowfabric.testing.flows import COUNTS, FLOW, member, plan

pytestmark = pytest.mark.parametrize("store_kind", ["valkey-cluster"])

SCOPE = flow_partition(FLOW, COUNTS)


@asynccontextmanager
async def moving(server: ValkeyStore) -> AsyncIterator[None]:
    """The slot of the flow is on its way to another server."""
    scope = server.keys.partition(SCOPE)
    home = server.network.place(scope)
    other = next(place for place in server.network.places() if place != home)
    (id,) = await (await server.network.link(other)).ask([pack("CLUSTER", "MYID")])
    assert isinstance(id, bytes)
    slot = slot_of(scope)
    await _ask(server, pack("CLUSTER", "SETSLOT", slot, "MIGRATING", id))
    try:
        yield
    finally:
        await _ask(server, pack("CLUSTER", "SETSLOT", slot, "STABLE"))


async def _ask(server: ValkeyStore, request: bytes) -> Reply:
    """Past whoever would try again."""
    link = await server.network.link(server.network.place(server.keys.partition(SCOPE)))
    return (await link.ask([request]))[0]


async def test_nothing_of_a_flow_is_written_while_its_slot_moves(
    store: Store, clock: VirtualClock
) -> None:
    assert isinstance(store, ValkeyStore)
    made = await put_flow(store, clock, plan("ab", "a>b"))
    await add_lines(store, clock, line(1))
    (lease,) = await take(store, clock)
    moment = Moment(clock.now_ms(), clock.now_ms())
    ended = complete(lease, clock.now_ms(), b"1")
    patched = Changeset(
        flows=[FlowPatch(FLOW, made.flow.rev + 1, {"failed": 1})],
        members=drawn(plan("c"), clock).members,
        lines=[line(2)],
    )
    taking = (*moment.cells, store.keys.hints, clock.now_ms() + 9, 500, FLOW)
    calls: list[Call] = [
        *(call for _, call in apply_calls(store.keys, [ended], moment)),
        *(call for _, call in commit_calls(store.keys, [patched], moment, COUNTS)),
        function("flow_take", store.keys.partition(SCOPE), *taking),
    ]
    before = await everything(store)
    async with moving(store):
        refused = [await _ask(store, call.request) for call in calls]
    assert [type(reply) for reply in refused] == [ReplyError] * 3
    assert await everything(store) == before
    again = [await _ask(store, call.request) for call in calls]
    assert not [reply for reply in again if isinstance(reply, ReplyError)]
    after = await everything(store)
    assert member("c") in [row.id for row in after.members]
    assert ended.line in after.lines
