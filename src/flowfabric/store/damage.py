"""Records that cannot be read: which record, which of its columns, and what is wrong with it.

Every store says it in the same words, and makes the same of records whose readers must go on:
lanes, turns of duties, lines of the log.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from flowfabric.core.documents import UNREADABLE_REV, AnyDocument, DamagedDocument, Document
from flowfabric.core.entries import Kept
from flowfabric.core.flow.model import Unreadable
from flowfabric.core.ids import ExecutionId, parse_execution_id, stored_execution_id
from flowfabric.core.model import (
    UNREADABLE,
    Ended,
    Event,
    Execution,
    Inserted,
    Lane,
    Lease,
    Shift,
    Value,
)
from flowfabric.core.states import LaneState, State
from flowfabric.errors import Corrupt, InvalidInput

MISSING_PAYLOAD = "its payload is missing"
MISSING_RESULT = "its result is missing"

# How a decoder names the place of a value: by position in an array, by name in a map.
_PLACE = re.compile(r" - at `(?:key in )?\$(?:\[(\d+)\]|\.(\w+)).*`$", re.DOTALL)


def problem_of(error: Exception, columns: Sequence[str] = ()) -> str:
    """What a decoder says about a record, with the name of the column in front."""
    said = str(error)
    place = _PLACE.search(said)
    if place is None:
        return said or type(error).__name__
    position, name = place.groups()
    if position is not None:
        name = columns[int(position)] if int(position) < len(columns) else f"#{position}"
    return in_column(name, said[: place.start()])


def names_of(record: type[msgspec.Struct]) -> tuple[str, ...]:
    """The columns of a record in the order of a row of it."""
    return tuple(field.name for field in msgspec.structs.fields(record))


def in_column(name: str, problem: str) -> str:
    return f"column {name}: {problem}"


def unreadable(id: str, problem: str) -> Corrupt:
    return Corrupt(f"execution {id} cannot be read: {problem}", details={"execution": id})


def unreadable_id(error: Corrupt) -> str:
    """As it is stored, the id of the execution that cannot be read; empty if it is not known."""
    told = str(error.details.get("execution", ""))
    try:
        return parse_execution_id(told)
    except InvalidInput:
        # What is damaged may be the id itself, which is then told as it is.
        return told


def unreadable_flow(id: str, problem: str) -> Corrupt:
    return Corrupt(f"flow {id} cannot be read: {problem}", details={"flow": id})


def unreadable_part(flow: str, lost: Unreadable) -> Corrupt:
    """A record of a flow, or the flow itself."""
    if lost.kind == "flow":
        return unreadable_flow(flow, lost.problem)
    return Corrupt(
        f"{lost.kind} {lost.name} of flow {flow} cannot be read: {lost.problem}",
        details={"flow": flow, lost.kind: lost.name},
    )


def ended(id: ExecutionId, state: State, told: tuple[str, str], result: bytes | None) -> Ended:
    """How an execution stands; whoever completed left a result, be it an empty one."""
    if result is None and state is State.COMPLETED:
        raise unreadable(id, MISSING_RESULT)
    return Ended(id, state, *told, result or b"")


def lease_or_unusable(head: Execution, payload: bytes | None) -> Lease:
    """What a claim took, with or without an input."""
    return Lease(head, b"", MISSING_PAYLOAD) if payload is None else Lease(head, payload)


def known_key(id: object, digest: object) -> Inserted:
    """Whom a key that is alive belongs to."""
    try:
        owner = stored_execution_id(str(id))
    except InvalidInput:
        return Inserted(
            ExecutionId(str(id)), created=False, problem=in_column("id", f"{id!r} is not an id")
        )
    if not isinstance(digest, str):
        return Inserted(owner, created=False, problem=in_column("digest", "Expected `str`"))
    return Inserted(owner, created=False, digest=digest)


def lane_or_shut(name: str, state: object, rev: object) -> Lane:
    try:
        return msgspec.convert([name, state, rev], Lane)
    except msgspec.ValidationError as error:
        problem = problem_of(error, names_of(Lane))
        return Lane(name, LaneState.DISABLED, rev if type(rev) is int else 0, problem)


def unreadable_lane(lane: Lane) -> Corrupt:
    return Corrupt(f"lane {lane.name} cannot be read: {lane.problem}", details={"lane": lane.name})


def shift_or_free(name: str, owner: object, until_ms: object, report: object) -> Shift:
    """One that cannot be read is nobody's: whoever asks for it writes it anew."""
    try:
        return msgspec.convert([name, owner, until_ms, report], Shift)
    except msgspec.ValidationError:
        return Shift(name, "", 0)


_ENTRY = ("topic", "key", "body", "generation", "epoch", "n")


def kept_or_damaged(cells: Sequence[object]) -> Kept:
    """An entry from its cells, in the order of the record; what is wrong with one that cannot be
    read is told with it, so that it keeps no other back."""
    try:
        return Kept(*msgspec.convert(cells, _Kept, builtin_types=(bytes,)))
    except msgspec.ValidationError as error:
        topic, key, _, *numbers = cells
        generation, epoch, n = (each if type(each) is int else 0 for each in numbers)
        problem = problem_of(error, _ENTRY)
        return Kept(str(topic), str(key), b"", generation, epoch, n, problem)


_Kept = tuple[str, str, bytes, int, int, int]


def document_or_damaged(cells: Sequence[object]) -> AnyDocument:
    """A document from its cells in the order of the record."""
    try:
        return msgspec.convert(cells, Document)
    except msgspec.ValidationError as error:
        return damaged_document(cells, problem_of(error, names_of(Document)))


def damaged_document(cells: Sequence[object], problem: str) -> DamagedDocument:
    kind, namespace, name, rev = cells[:4]
    known = rev if type(rev) is int else UNREADABLE_REV
    return DamagedDocument(str(kind), str(namespace), str(name), known, problem)


_LINE = ("at_ms", "kind", "state", "attempt", "epoch", "detail")
_Line = tuple[int, str, str, int, int, str]
_STATES: dict[object, State] = {state.value: state for state in State}
_detail = msgspec.json.Decoder(dict[str, Value])


def event_of(cursor: str, id: str, cells: Sequence[object]) -> Event:
    """A line of the log from its cells, the detail as JSON."""
    try:
        at_ms, kind, word, attempt, epoch, detail = msgspec.convert(cells, _Line)
        fields = _detail.decode(detail)
    except msgspec.ValidationError as error:
        return _unreadable_event(cursor, id, cells, problem_of(error, _LINE))
    except msgspec.DecodeError as error:
        return _unreadable_event(cursor, id, cells, in_column("detail", str(error)))
    state = _STATES.get(word)
    if state is None:
        # As of a row that is being held: it may have ended, so whoever waits for it must look.
        state = State.ACTIVE
        fields[UNREADABLE] = in_column("state", f"Invalid enum value {word!r}")
    return Event(
        cursor=cursor,
        execution=ExecutionId(id),
        at_ms=at_ms,
        kind=kind,
        state=state,
        attempt=attempt,
        epoch=epoch,
        detail=fields,
    )


def _unreadable_event(cursor: str, id: str, cells: Sequence[object], problem: str) -> Event:
    at_ms, state = cells[0], cells[2]
    return Event(
        cursor=cursor,
        execution=ExecutionId(id),
        at_ms=at_ms if type(at_ms) is int else 0,
        kind=UNREADABLE,
        state=_STATES.get(state, State.ACTIVE),
        attempt=-1,
        epoch=0,
        detail={UNREADABLE: problem},
    )
