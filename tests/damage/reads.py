"""Everything that can be asked about one execution or one flow, by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from flowfabric.core.flow.model import Edge, Flow, Group, Line
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import Attempt, Event, Execution, Feed, Query, Want
from flowfabric.engine.flow_reading import Direction
from flowfabric.errors import Corrupt
from flowfabric.testing.flows import member
from tests.damage.cases import Subject
from tests.damage.spots import Key, Payload, Spot, Tag, Word
from tests.flow.desk import FlowDesk

Read = Callable[[FlowDesk], Awaitable[object]]
Answers = dict[str, object]


def _reads_of(id: ExecutionId) -> dict[str, Read]:
    everything = Want(ids=[id], payload=True, tags=True)
    return {
        "load": lambda desk: desk.store.load(everything),
        "describe": lambda desk: desk.engine.read.describe(id),
        "state": lambda desk: desk.engine.read.state(id),
        "result": lambda desk: desk.engine.read.result(id),
        "endings": lambda desk: desk.engine.read.endings([id]),
        "tags": lambda desk: desk.engine.read.tags(id),
        "attempts": lambda desk: desk.engine.read.attempts(id),
        "events": lambda desk: desk.engine.read.events(Feed(execution=id)),
        "explain": lambda desk: desk.engine.read.explain(id),
        "eligibility": lambda desk: desk.engine.read.eligibility(id),
        "flow_of": lambda desk: desk.engine.flows.read.flow_of(id),
        "find": lambda desk: _found(desk, id),
    }


def _reads_of_flow(flow: FlowId) -> dict[str, Read]:
    last = member("c", flow)
    return {
        "flow": lambda desk: desk.engine.flows.flow(flow),
        "describe flow": lambda desk: desk.engine.flows.read.describe(flow),
        "status": lambda desk: desk.engine.flows.status(flow),
        "members": lambda desk: desk.engine.flows.read.members(flow),
        "picture": lambda desk: desk.engine.flows.picture(flow),
        "incoming": lambda desk: desk.engine.flows.read.edges(last, Direction.INCOMING),
        "outgoing": lambda desk: desk.engine.flows.read.edges(
            member("b", flow), Direction.OUTGOING
        ),
        "backlog": lambda desk: desk.engine.flows.backlog(flow),
    }


async def _found(desk: FlowDesk, id: ExecutionId) -> object:
    """Listed behind the id that comes just before it."""
    before = ExecutionId(id[:-1] + chr(ord(id[-1]) - 1) + "~")
    page = await desk.store.find(Query(after=before, limit=1))
    return page if page and page[0].id == id else []


async def ask_all(desk: FlowDesk, subject: Subject) -> Answers:
    """What each read answers, errors too."""
    reads = _reads_of(subject.execution)
    if subject.flow is not None:
        reads |= _reads_of_flow(subject.flow)
    answers: Answers = {}
    for name, read in reads.items():
        try:
            answers[name] = await read(desk)
        except Exception as error:
            answers[name] = error
    return answers


def lies(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Reads that answer something else than they did, and do not say why."""
    return [
        f"{name}: {told!r}"
        for name, told in after.items()
        if not isinstance(told, Corrupt) and not _same(told, before[name])
    ]


def _same(told: object, before: object) -> bool:
    if isinstance(told, Exception):
        return isinstance(before, type(told)) and str(told) == str(before)
    return told == before


def name_of(spot: Spot) -> str:
    """Some of what an error about this record must say."""
    match spot:
        case Execution() | Flow() | Payload() | Tag() | Key():
            return spot.id
        case Edge() | Group():
            return spot.downstream
        case Line():
            return spot.flow
        case Attempt() | Event():
            return spot.execution
        case Word():
            return spot.document.name
        case _:
            return spot.name
