"""The cases: every column of every kind of record, damaged in every way, each with work of its own.

A subject is what one case damages: an execution or a flow that nothing else has to do with. The
columns come from the models, so that a new one is a new case.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from enum import StrEnum
from itertools import count
from typing import NamedTuple

import msgspec

from flowfabric.core.flow.model import Edge, Flow, Group, Line
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.lifecycle import Failure
from flowfabric.core.model import Attempt, Event, Execution, Feed, Lane
from flowfabric.testing.build import NAMESPACE, order, policy
from flowfabric.testing.flows import flow_id, member, plan
from tests.damage.spots import COLUMNS, Cell, Key, Payload, Raw, Spot, Tag
from tests.flow.desk import FlowDesk

BIG = b'"' + b"x" * 1000 + b'"'


class Damage(StrEnum):
    NULL = "null"
    TYPE = "other type"
    WORD = "unknown word"
    GONE = "missing row"


CELLS: dict[Damage, Cell] = {Damage.NULL: None, Damage.TYPE: b"\xff\xfe", Damage.WORD: "melted"}


class Subject(NamedTuple):
    """What is damaged, and whose reads must tell of it."""

    spot: Spot
    execution: ExecutionId
    flow: FlowId | None = None


class Case(NamedTuple):
    kind: type[msgspec.Struct]
    column: str
    damage: Damage
    shape: str

    def __str__(self) -> str:
        return f"{self.kind.__name__}.{self.column} {self.damage} ({self.shape})"


Make = Callable[[FlowDesk, int], Awaitable[Subject]]


async def _waiting(desk: FlowDesk, number: int) -> ExecutionId:
    return await desk.submit(order(number, policy=policy(retries=2, pause_ms=0), tags={"a.b": "c"}))


async def _running(desk: FlowDesk, number: int) -> ExecutionId:
    return (await desk.take(await _waiting(desk, number))).id


async def _delayed(desk: FlowDesk, number: int) -> ExecutionId:
    later_ms = desk.clock.now_ms() + 60_000
    return await desk.submit(order(number, delay_until_ms=later_ms))


async def _retried(desk: FlowDesk, number: int) -> ExecutionId:
    """Completed in its second attempt."""
    lease = await desk.take(await _waiting(desk, number))
    await desk.engine.fail(lease, Failure("broke"))
    await desk.engine.complete(await desk.take(lease.id), b'"done"')
    return lease.id


SHAPES: dict[str, Callable[[FlowDesk, int], Awaitable[ExecutionId]]] = {
    "waiting": _waiting,
    "running": _running,
    "delayed": _delayed,
    "completed": _retried,
}


def _execution(shape: str) -> Make:
    async def make(desk: FlowDesk, number: int) -> Subject:
        id = await SHAPES[shape](desk, number)
        return Subject(await desk.head(id), id)

    return make


async def _payload(desk: FlowDesk, number: int) -> Subject:
    id = await desk.submit(order(number, payload=BIG))
    return Subject(Payload(id), id)


def _attempt(shape: str) -> Make:
    async def make(desk: FlowDesk, number: int) -> Subject:
        id = await _retried(desk, number)
        return Subject((await desk.attempts(id))[int(shape)], id)

    return make


async def _tag(desk: FlowDesk, number: int) -> Subject:
    id = await _waiting(desk, number)
    return Subject(Tag(id, "a.b"), id)


async def _key(desk: FlowDesk, number: int) -> Subject:
    key = f"key-{number}"
    id = await desk.submit(order(number, key=key, digest="d"))
    return Subject(Key(NAMESPACE, key, id), id)


async def _lane(desk: FlowDesk, number: int) -> Subject:
    lane = f"lane-{number}"
    id = await desk.submit(order(number, lane=lane))
    return Subject(Lane(lane), id)


async def _event(desk: FlowDesk, number: int) -> Subject:
    id = await _retried(desk, number)
    line = (await desk.engine.read.events(Feed(execution=id)))[-1]
    return Subject(line, id)


async def _drawn(desk: FlowDesk, number: int) -> FlowId:
    """Two of three have ended, of which one was acted on; the third waits for both."""
    flow = flow_id(number)
    await desk.draw(plan("abc", "a>c b>c", flow=flow))
    await desk.end("a", flow=flow)
    for line in await desk.lines(flow):
        await desk.dispatcher.dispatch(line)
    await desk.end("b", flow=flow)
    return flow


async def _flow(desk: FlowDesk, number: int) -> Subject:
    flow = await _drawn(desk, number)
    return Subject(await desk.flow(flow), member("c", flow), flow)


async def _edge(desk: FlowDesk, number: int) -> Subject:
    flow = await _drawn(desk, number)
    return Subject(await desk.edge("b", "c", flow), member("c", flow), flow)


async def _group(desk: FlowDesk, number: int) -> Subject:
    flow = await _drawn(desk, number)
    return Subject(await desk.group("c", flow), member("c", flow), flow)


async def _line(desk: FlowDesk, number: int) -> Subject:
    flow = await _drawn(desk, number)
    return Subject((await desk.lines(flow))[0], member("c", flow), flow)


MAKERS: dict[type[msgspec.Struct], dict[str, Make]] = {
    Execution: {shape: _execution(shape) for shape in SHAPES},
    Payload: {"": _payload},
    Attempt: {shape: _attempt(shape) for shape in ("0", "1")},
    Tag: {"": _tag},
    Key: {"": _key},
    Lane: {"": _lane},
    Event: {"": _event},
    Flow: {"": _flow},
    Edge: {"": _edge},
    Group: {"": _group},
    Line: {"": _line},
}


# What a record is found by: without it nobody but a look at every page can know of the record.
NAMES: dict[type[msgspec.Struct], tuple[str, ...]] = {
    Execution: ("id", "flow"),
    Flow: ("id",),
    Line: ("flow", "at_ms", "id", "next_try_ms"),
    Tag: ("key",),
    Attempt: ("attempt",),
}


def every_case(*, sampled: bool) -> Iterator[Case]:
    """All of them; or every column in one way and shape, and every way and shape of some column."""
    turn = count()
    for kind, makers in MAKERS.items():
        for shape in makers:
            yield Case(kind, "", Damage.GONE, shape)
        for column in COLUMNS[kind]:
            whole = [(damage, shape) for damage in CELLS for shape in makers]
            some = [whole[next(turn) % len(whole)]] if sampled else whole
            for damage, shape in some:
                yield Case(kind, column, damage, shape)


async def spoil(raw: Raw, case: Case, subject: Subject) -> bool:
    """Do it; False when the database does not let anybody do it."""
    if case.damage is Damage.GONE:
        return await raw.remove(subject.spot)
    return await raw.write(subject.spot, case.column, CELLS[case.damage])


def is_sound(case: Case, spot: Spot) -> bool:
    """Whether the column may well say that: then there is nothing to be told of."""
    if case.damage is Damage.GONE:
        return False
    if case.column in ("result", "body"):
        return CELLS[case.damage] is not None
    cells = {**msgspec.structs.asdict(spot), case.column: CELLS[case.damage]}
    values: object = list(cells.values()) if type(spot).__struct_config__.array_like else cells
    try:
        msgspec.convert(values, type(spot), builtin_types=(bytes,))
    except msgspec.ValidationError:
        return False
    return True
