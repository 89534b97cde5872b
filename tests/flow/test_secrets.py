"""Whoever knows the token of a lease can act for its holder: no reading verb answers one, and no
text that is made of a record shows one.

The reading verbs are found in the classes themselves: a new one without a row here is a failure.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Awaitable, Callable, Iterator

import msgspec
import pytest

import flowfabric
from flowfabric.client.client import Client
from flowfabric.client.flow_handle import FlowHandle
from flowfabric.client.handle import Handle
from flowfabric.core.flow.views import FlowQuery
from flowfabric.core.model import SECRETS, Feed, Query, Secretive
from flowfabric.core.transition import Held
from flowfabric.engine.doctor import Doctor
from flowfabric.engine.flow_reading import Direction, FlowReading
from flowfabric.engine.flows import Flows
from flowfabric.engine.outcomes import Follow
from flowfabric.engine.reading import Reading
from flowfabric.testing.build import KIND, LANE, TTL_MS, WORKER, ask
from flowfabric.testing.flows import FLOW, member, plan
from tests.flow.desk import FlowDesk

TOKEN = "the-secret-of-one-lease"
HELD = member("b")


class Node:
    """A node of the graph, for the handle of its flow."""

    id = HELD

    def decode(self, body: bytes) -> bytes:
        return body


class Room:
    """An engine, and a client of it, on a store in which one member is held under the token."""

    def __init__(self, desk: FlowDesk) -> None:
        self.desk = desk
        self.engine = desk.engine
        self.read = desk.engine.read
        self.flows = desk.engine.flows
        self.client = Client(desk.engine)
        self.handle = self.client.handle(HELD, bytes)
        self.run = self.client.flow_handle(FLOW)


async def _waits(room: Room) -> object:
    (row,) = (await room.read.find(Query(limit=1))).items
    return await room.read.waits(row)


async def _snapshots(room: Room) -> object:
    return await room.read.snapshots((await room.read.find(Query(limit=1))).items)


Read = Callable[[Room], Awaitable[object]]

READS: dict[type, dict[str, Read]] = {
    Reading: {
        "load": lambda room: room.read.load(HELD, payload=True),
        "describe": lambda room: room.read.describe(HELD),
        "state": lambda room: room.read.state(HELD),
        "result": lambda room: room.read.result(HELD),
        "endings": lambda room: room.read.endings([HELD]),
        "tags": lambda room: room.read.tags(HELD),
        "tags_of": lambda room: room.read.tags_of([HELD]),
        "member_names": lambda room: room.read.member_names([HELD]),
        "attempts": lambda room: room.read.attempts(HELD),
        "attempt_records": lambda room: room.read.attempt_records(HELD),
        "failure": lambda room: room.read.failure(HELD),
        "unserved": lambda room: room.read.unserved([HELD]),
        "events": lambda room: room.read.events(Feed()),
        "explain": lambda room: room.read.explain(HELD),
        "waits": _waits,
        "eligibility": lambda room: room.read.eligibility(HELD),
        "find": lambda room: room.read.find(Query()),
        "count": lambda room: room.read.count(Query()),
        "lanes": lambda room: room.read.lanes(room.engine.namespace),
        "list_lanes": lambda room: room.read.list_lanes(),
        "snapshots": _snapshots,
    },
    FlowReading: {
        "describe": lambda room: room.flows.read.describe(FLOW),
        "find": lambda room: room.flows.read.find(FlowQuery()),
        "members": lambda room: room.flows.read.members(FLOW),
        "everybody": lambda room: room.flows.read.everybody(FLOW),
        "flow_of": lambda room: room.flows.read.flow_of(HELD),
        "edge": lambda room: room.flows.read.edge(FLOW, member("a"), HELD),
        "edges": lambda room: room.flows.read.edges(HELD, Direction.INCOMING),
    },
    Flows: {
        "flow": lambda room: room.flows.flow(FLOW),
        "status": lambda room: room.flows.status(FLOW),
        "summary": lambda room: room.flows.summary(FLOW),
        "counted": lambda room: room.flows.counted(FLOW),
        "picture": lambda room: room.flows.picture(FLOW),
        "members": lambda room: room.flows.members(FLOW),
        "require_readable": lambda room: room.flows.require_readable(FLOW),
        "backlog": lambda room: room.flows.backlog(FLOW),
        "owed": lambda room: room.flows.owed(FLOW),
    },
    Handle: {
        "status": lambda room: room.handle.status(),
        "attempts": lambda room: room.handle.attempts(),
        "events": lambda room: room.handle.events(),
        "explain": lambda room: room.handle.explain(),
    },
    FlowHandle: {
        "status": lambda room: room.run.status(),
        "members": lambda room: room.run.members(),
        "graph": lambda room: room.run.graph(),
        "backlog": lambda room: room.run.backlog(),
        "events": lambda room: room.run.events(Node()),
    },
    Client: {"flows": lambda room: room.client.flows(FlowQuery())},
    Doctor: {"examine": lambda room: Doctor(room.engine.store, room.engine.clock).examine()},
}

# Verbs that write, that answer the bytes of a result, or that take a lease to answer anything.
OTHERS: dict[type, set[str]] = {
    Reading: set(),
    FlowReading: set(),
    Flows: {"submit", "cancel", "wait_cancelled", "inputs", "known_inputs"},
    Handle: {
        *("id", "result", "wait", "cancel", "replay", "reprioritize", "pause", "resume"),
    },
    FlowHandle: {"id", "handle", "result", "wait", "cancel", "replay"},
    Client: {
        *("start", "start_many", "handle", "namespace", "now_ms", "mint_flow", "member_orders"),
        *("submit_flow", "flow_handle", "close"),
    },
    Doctor: set(),
}


@pytest.fixture
async def room(desk: FlowDesk) -> Room:
    await desk.draw(plan("abc", "a>b b>c"))
    await desk.ended("a")
    claimed = await desk.engine.claim(
        [LANE], 1, tasks=[KIND], worker=WORKER, token=TOKEN, ttl_ms=TTL_MS
    )
    assert [lease.id for lease in claimed] == [HELD]
    return Room(desk)


@pytest.mark.parametrize("kind", READS)
def test_every_public_verb_is_told_apart(kind: type) -> None:
    public = {name for name in vars(kind) if not name.startswith("_")}
    assert public == READS[kind].keys() | OTHERS[kind]


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in READS for name in READS[kind]])
async def test_no_reading_verb_answers_the_token_of_a_lease(
    room: Room, kind: type, name: str
) -> None:
    answer = await READS[kind][name](room)
    assert TOKEN not in msgspec.json.encode(answer, enc_hook=repr).decode()
    assert TOKEN not in repr(answer)
    await room.client.close()


def _records(kind: type[msgspec.Struct] = msgspec.Struct) -> Iterator[type[msgspec.Struct]]:
    for each in kind.__subclasses__():
        yield each
        yield from _records(each)


def test_every_record_with_a_token_keeps_it_to_itself() -> None:
    """All modules are loaded first, so that it does not matter what else has run."""
    for module in pkgutil.walk_packages(flowfabric.__path__, "flowfabric."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    keepers = {
        each
        for each in _records()
        if each.__module__.startswith("flowfabric.") and SECRETS & set(each.__struct_fields__)
    }
    assert {each.__name__ for each in keepers} >= {"Execution", "Claim", "Held", "Follow"}
    assert [each for each in keepers if not issubclass(each, Secretive)] == []


async def test_no_text_of_a_lease_shows_its_token(room: Room) -> None:
    lease = await room.engine.adopt(HELD)
    follow = Follow(lanes=[LANE], tasks=[KIND], limit=1, worker=WORKER, token=TOKEN, ttl_ms=TTL_MS)
    for record in (lease, lease.head, ask(0, token=TOKEN), Held(1, TOKEN), follow):
        assert TOKEN not in f"{record} {record!r}"
        assert inspect.getattr_static(record, "__rich_repr__") is not None
        assert TOKEN not in repr(record.__rich_repr__())
    assert lease.token == TOKEN
