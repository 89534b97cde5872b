"""Records to and from what the server keeps: hashes with the names of the columns as fields.

A column that has its default is not stored, so a hash says only what is special about its record.
Replies are values of any type until they have been read here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from flowfabric.core.ids import ExecutionId, execution_id
from flowfabric.core.model import (
    Attempt,
    Ended,
    Execution,
    Inserted,
    Lane,
    Lease,
    Loaded,
    Malformed,
    Shift,
    Value,
)
from flowfabric.core.states import LaneState, State
from flowfabric.store.cursor import unreadable
from flowfabric.store.valkey.link import Cell

Parse = Callable[[bytes], Any]
UNREADABLE = (KeyError, ValueError, TypeError, msgspec.MsgspecError)


def _flag(cell: bytes) -> bool:
    return {b"0": False, b"1": True}[cell]


def _parser(kind: object) -> Parse:
    """How a column of this type is read."""
    if get_origin(kind) in (Union, UnionType):
        kind = next(each for each in get_args(kind) if each is not NoneType)
    if kind is int:
        return int
    if kind is bool:
        return _flag
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {member.value.encode(): member for member in kind}.__getitem__
    return bytes.decode


def parsers_of(record: type[msgspec.Struct]) -> dict[bytes, Parse]:
    hints = get_type_hints(record)
    names = [field.name for field in msgspec.structs.fields(record)]
    return {name.encode(): _parser(hints[name]) for name in names}


def usual_of(record: type[msgspec.Struct]) -> dict[str, object]:
    return {field.name: field.default for field in msgspec.structs.fields(record)}


_PARSERS = parsers_of(Execution)
_NAMES = {name: name.decode() for name in _PARSERS}
# What a submit may leave empty is usual too, though the record asks for it.
_LEFT_OUT: dict[str, Any] = {"creator": "", "policy": ""}
_USUAL = usual_of(Execution) | _LEFT_OUT
_COLUMNS = tuple(_USUAL)
_USUAL_VALUES = tuple(_USUAL.values())
_STATES = {state.value.encode(): state for state in State}


def uuid_of(id: ExecutionId) -> str:
    """The part of an id that is not its partition."""
    return id[id.index("}") + 2 :]


def cell_of(value: Any) -> Cell:
    """A flag is a number; everything else goes as it is."""
    cell: Cell = int(value) if value is True or value is False else value
    return cell


# -- writing ------------------------------------------------------------------------------------


def head_values(head: Execution) -> tuple[object, ...]:
    """Everything but the id: equal for executions that are submitted alike."""
    return msgspec.structs.astuple(head)[1:]


def head_cells(values: tuple[object, ...]) -> list[Cell]:
    """Names and values of every column that is not as usual."""
    cells: list[Cell] = []
    for name, value, usual in zip(_COLUMNS[1:], values, _USUAL_VALUES[1:], strict=True):
        if value is not None and value != usual:
            cells += (name, cell_of(value))
    return cells


def patch_cells(patch: Mapping[str, Value], usual: Mapping[str, object] = _USUAL) -> list[Cell]:
    """How many cells are set, those, how many columns go back to what is usual, those."""
    cells: list[Cell] = []
    gone: list[Cell] = []
    for name, value in patch.items():
        if value is None or value == usual[name]:
            gone.append(name)
        else:
            cells += (name, cell_of(value))
    return [len(cells), *cells, len(gone), *gone]


_ATTEMPT_USUAL = usual_of(Attempt)


def attempt_cells(attempt: Attempt) -> list[Cell]:
    """How it began, who worked on it, how it ended; the result goes with each item."""
    began: dict[str, Value] = {"kind": attempt.kind, "started_ms": attempt.started_ms}
    worked: dict[str, Value] = {"worker": attempt.worker, "epoch": attempt.epoch}
    ended: dict[str, Value] = {
        "lifecycle": attempt.lifecycle,
        "ended_ms": attempt.ended_ms,
        "detail": attempt.detail,
        "category": attempt.category,
    }
    parts = [patch_cells(part, _ATTEMPT_USUAL) for part in (began, worked, ended)]
    return [cell for part in parts for cell in part]


# -- reading ------------------------------------------------------------------------------------


def head_or_malformed(id: ExecutionId, reply: Any) -> Execution | Malformed | None:
    """A head, as much as can be said of one that cannot be read, or None for an absent one."""
    if not reply:
        return None
    cells = pairs_of(reply)
    cells.pop(b"payload", None)
    try:
        fields = {_NAMES[name]: _PARSERS[name](cell) for name, cell in cells.items()}
        return Execution(**(_LEFT_OUT | fields), id=id)
    except UNREADABLE:
        return _loosely(id, cells)


def _loosely(id: ExecutionId, cells: dict[bytes, bytes]) -> Execution | Malformed:
    """Columns that a newer program wrote are passed over; what is left must be readable."""
    known = {name: value for name, value in cells.items() if name in _PARSERS}
    try:
        fields: dict[str, Any] = {_NAMES[name]: _PARSERS[name](v) for name, v in known.items()}
        return Execution(**(_LEFT_OUT | fields), id=id)
    except UNREADABLE as error:
        rev, failures = _number(cells.get(b"rev", b"1")), _number(cells.get(b"failures"))
        return Malformed(id, rev, failures, f"{type(error).__name__}: {error}")


def _number(cell: bytes | None) -> int:
    return int(cell) if cell is not None and cell.isdigit() else 0


def pairs_of(reply: Any) -> dict[bytes, bytes]:
    cells = iter(reply)
    return dict(zip(cells, cells, strict=True))


def head_of(id: ExecutionId, reply: Any) -> Execution | None:
    """A head; one that cannot be read is `Corrupt`."""
    head = head_or_malformed(id, reply)
    if isinstance(head, Malformed):
        raise unreadable(head.id, head.problem)
    return head


def readable(id: ExecutionId, reply: Any) -> Execution | None:
    """A head, or None also for one that cannot be read."""
    head = head_or_malformed(id, reply)
    return head if isinstance(head, Execution) else None


def taken_of(reply: Any) -> list[ExecutionId]:
    """The ids that a claim took, by partition."""
    ids: list[ExecutionId] = []
    for partition, *uuids in reply:
        tag = f"{{fp:{partition.decode()}}}:"
        ids += [ExecutionId(tag + uuid.decode()) for uuid in uuids]
    return ids


def lease_of(id: ExecutionId, reply: Any, token: str) -> tuple[Lease | None, bool]:
    """A lease, unless it was lost meanwhile, and whether its payload is kept elsewhere.

    A row that cannot be read keeps its lease until its timer finds it there.
    """
    head = readable(id, reply)
    if head is None or head.lease_token != token or head.state is not State.ACTIVE:
        return None, False
    payload = payload_of(reply)
    return Lease(head, payload or b""), payload is None


def payload_of(reply: Any) -> bytes | None:
    """A payload that is kept in the head."""
    for place in range(0, len(reply), 2):
        if reply[place] == b"payload":
            payload: bytes = reply[place + 1]
            return payload
    return None


def bytes_of(reply: Any) -> bytes:
    return reply if isinstance(reply, bytes) else b""


def inserted_of(id: ExecutionId, reply: Any) -> Inserted:
    if isinstance(reply, int):
        return Inserted(id, created=reply == 1, exists=reply >= 0)
    owner, digest = reply
    return Inserted(ExecutionId(owner.decode()), created=False, digest=digest.decode())


def loaded_of(id: ExecutionId, reply: Any) -> Loaded | None:
    flat, payload, tags, attempts = reply
    head = head_of(id, flat)
    if head is None:
        return None
    texts = sorted((key.decode(), value.decode()) for key, value in pairs_of(tags).items())
    tried = tuple(_attempt(head.id, number, cells) for number, cells in attempts)
    return Loaded(head, payload, dict(texts), tried)


def _attempt(id: ExecutionId, number: int, reply: Any) -> Attempt:
    cells: dict[str, Any] = {name.decode(): value for name, value in pairs_of(reply).items()}
    result = cells.pop("result", None)
    named = {name: value.decode() for name, value in cells.items()}
    usual = {"execution": id, "attempt": number, "started_ms": None, "worker": ""}
    try:
        attempt = msgspec.convert(usual | named, Attempt, strict=False)
    except UNREADABLE as error:
        raise unreadable(id, f"attempt {number}: {error}") from None
    return msgspec.structs.replace(attempt, result=result)


def ended_of(id: ExecutionId, reply: Any) -> Ended | None:
    state, detail, category, result = reply
    if state is None:
        return None
    if state not in _STATES:
        raise unreadable(id, f"unknown state {state.decode(errors='replace')!r}")
    told = (detail or b"").decode(), (category or b"").decode()
    return Ended(id, _STATES[state], *told, result or b"")


def lanes_of(reply: Any) -> list[Lane]:
    """Lanes by name; each is stored as its state and its revision."""
    lanes: list[Lane] = []
    for name, text in sorted(pairs_of(reply).items()):
        state, _, rev = text.decode().partition(" ")
        lanes.append(Lane(name.decode(), LaneState(state), int(rev)))
    return lanes


def shifts_of(reply: Any) -> list[Shift]:
    """Shifts by name; each is stored as its owner, its end and its report."""
    shifts: list[Shift] = []
    for name, text in sorted(pairs_of(reply).items()):
        owner, until_ms, report = text.decode().split(" ", 2)
        shifts.append(Shift(name.decode(), owner, int(until_ms), report))
    return shifts


def state_or_held(text: str) -> State:
    """The state in a line of the log; one that cannot be read is told as being held."""
    return _STATES.get(text.encode(), State.ACTIVE)


def texts(reply: Any) -> list[str]:
    return [cell.decode() for cell in reply]


def scored(reply: Any) -> list[tuple[str, float]]:
    """Members and scores of a sorted set."""
    cells = iter(reply)
    return [(member.decode(), float(score)) for member, score in zip(cells, cells, strict=True)]


def record(reply: Any) -> dict[str, str]:
    return {
        name.decode(): value.decode(errors="replace") for name, value in pairs_of(reply).items()
    }


def rows_of(reply: Any) -> Sequence[Any]:
    rows: Sequence[Any] = reply
    return rows


def found_of(partition: int, reply: Any) -> tuple[str, list[Execution]]:
    """How far it was looked, nothing when at the end, and what fits."""
    last, rows = reply
    heads = [head_of(execution_id(partition, uuid.decode()), flat) for uuid, flat in rows]
    return last.decode(), [head for head in heads if head is not None]


def change_of(reply: Any) -> tuple[str, int, str, str]:
    """A queue's name, its partition, which version this is, and how it begins."""
    name, partition, version, score = reply
    return name.decode(), int(partition), version.decode(), score.decode()


class Peek(NamedTuple):
    """Which version of a partition this is, its first timer, its first flow with something to do,
    and the heads of its queues."""

    version: str
    due: str
    flows: str
    queues: list[list[tuple[str, float]]]


def peek_of(reply: Any) -> Peek:
    version, due, flows, queues = reply
    return Peek(version.decode(), due.decode(), flows.decode(), [scored(queue) for queue in queues])


Timer = tuple[int, ExecutionId, Execution | Malformed]


def due_of(partition: int, reply: Any) -> tuple[str, str, str, list[Timer]]:
    """Version, first timer, first timer that has not passed, and the rows whose timer has."""
    version, first, later, rows = reply
    timers: list[Timer] = []
    for uuid, due_ms, flat in rows:
        id = execution_id(partition, uuid.decode())
        head = head_or_malformed(id, flat)
        if head is not None:
            timers.append((int(due_ms), id, head))
    return version.decode(), first.decode(), later.decode(), timers


def history_of(reply: Any) -> list[tuple[str, str]]:
    """Positions and texts of the lines of one execution."""
    cells = [cell.decode().partition("\t") for cell in reply or ()]
    return [(spot, text) for spot, _, text in cells]


def newest_of(reply: Any) -> tuple[str, str] | None:
    """Where the last line of a partition is, and what it says."""
    spot, line = reply
    return None if spot is None else (spot.decode(), line.decode())


class Write(NamedTuple):
    """An entry of a feed: the number of the write, and its lines as they are kept."""

    version: int
    lines: list[bytes]


def feeds_of(reply: Any) -> list[tuple[int, list[Write]]]:
    """Partitions that have news, with their writes."""
    feeds: list[tuple[int, list[Write]]] = []
    for key, entries in reply or ():
        number = int(key[key.index(b"{fp:") + 4 : key.index(b"}")])
        writes = [Write(int(id.partition(b"-")[0]), cells[1::2]) for id, cells in entries]
        feeds.append((number, writes))
    return feeds


def refused_of(ids: Sequence[ExecutionId], reply: Any) -> dict[int, Execution | None]:
    """Which items of a call were refused, and the rows that refused them."""
    return {place: readable(ids[place], row) for place, row in reply}


def time_of(reply: Any) -> int:
    seconds, micros = reply
    return int(seconds) * 1000 + int(micros) // 1000


def scanned(reply: Any) -> tuple[str, list[str]]:
    """Where a scan goes on, and the keys it found. Keys that are no text are not ours."""
    cursor, keys = reply
    found = [key.decode(errors="surrogateescape") for key in keys]
    return cursor.decode(), [key for key in found if key.isprintable() or key.isascii()]
