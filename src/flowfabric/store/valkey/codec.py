"""What the server answers, as values; hashes have the names of columns as fields.

Replies are values of any type until they have been read here. Heads and attempts are read in
`heads`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from flowfabric.core.documents import AnyDocument
from flowfabric.core.entries import Append, Appended, Kept
from flowfabric.core.flow.model import MISSING
from flowfabric.core.ids import ExecutionId, execution_id
from flowfabric.core.model import (
    Execution,
    Inserted,
    Lane,
    Loaded,
    Malformed,
    Shift,
)
from flowfabric.core.retention import Purged
from flowfabric.core.transition import Rejected
from flowfabric.store.damage import (
    MISSING_PAYLOAD,
    damaged_document,
    document_or_damaged,
    in_column,
    kept_or_damaged,
    known_key,
    lane_or_shut,
    shift_or_free,
    unreadable,
)
from flowfabric.store.valkey.heads import (
    attempt_of,
    head_of,
    head_or_malformed,
    payload_of,
    readable,
)
from flowfabric.store.valkey.link import Cell

Parse = Callable[[bytes], Any]

UUID_LENGTH = 36


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


def uuid_of(id: ExecutionId) -> str:
    """The part of an id that is not its partition."""
    return id[-UUID_LENGTH:]


def cell_of(value: Any) -> Cell:
    """A flag is a number; everything else goes as it is."""
    cell: Cell = int(value) if value is True or value is False else value
    return cell


def pairs_of(reply: Any) -> dict[bytes, bytes]:
    cells = iter(reply)
    return dict(zip(cells, cells, strict=True))


class Taken(NamedTuple):
    """What a claim took: the head as it is since then."""

    id: ExecutionId
    text: bytes


def taken_of(reply: Any) -> list[Taken]:
    return [
        Taken(ExecutionId(f"{{fp:{partition.decode()}}}:{uuid.decode()}"), text)
        for partition, uuid, text in reply
    ]


def inserted_of(id: ExecutionId, reply: Any) -> Inserted:
    if isinstance(reply, int):
        return Inserted(id, created=reply == 1, exists=reply >= 0)
    owner, digest = (None if cell is None else cell.decode(errors="replace") for cell in reply)
    return known_key(owner, digest)


def loaded_of(id: ExecutionId, reply: Any, *, payload: bool) -> Loaded | None:
    """A head with what was asked for beside it; a small payload is in its text."""
    text, body, tags, attempts = reply
    head = head_of(id, text)
    if head is None:
        return None
    texts = sorted((key.decode(), _text(id, value)) for key, value in pairs_of(tags).items())
    tried = tuple(attempt_of(id, number, kept) for number, kept in attempts)
    inline = payload_of(text) if payload and body is None else body
    if payload and inline is None:
        raise unreadable(id, MISSING_PAYLOAD)
    return Loaded(head, inline or b"", dict(texts), tried)


def _text(id: ExecutionId, cell: bytes) -> str:
    try:
        return cell.decode()
    except UnicodeDecodeError as error:
        raise unreadable(id, in_column("tag.value", str(error))) from None


def lanes_of(reply: Any) -> list[Lane]:
    """Lanes by name; each is stored as its state and its revision."""
    lanes: list[Lane] = []
    for name, text in sorted(pairs_of(reply).items()):
        state, _, rev = text.decode(errors="replace").partition(" ")
        lanes.append(lane_or_shut(name.decode(), state, _number(rev)))
    return lanes


def _number(text: str) -> int | str:
    """What is no number is left as it is, for the record to be refused."""
    return int(text) if text.isdecimal() and text.isascii() else text


def shifts_of(reply: Any) -> list[Shift]:
    """Shifts by name; each is stored as its owner, its end and its report."""
    shifts: list[Shift] = []
    for name, text in sorted(pairs_of(reply).items()):
        cells: list[object] = [*text.decode(errors="replace").split(" ", 2), "", ""]
        owner, until_ms, report = cells[:3]
        shifts.append(shift_or_free(name.decode(), owner, _number(str(until_ms)), report))
    return shifts


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


def texts_of(reply: Any) -> list[bytes | None]:
    """Records, or None for those that are not there."""
    rows: list[bytes | None] = reply
    return rows


def text_of(reply: Any) -> bytes | None:
    return reply if isinstance(reply, bytes) else None


def found_of(partition: int, reply: Any) -> tuple[str, list[Execution]]:
    """How far it was looked, nothing when at the end, and what fits."""
    last, rows = reply
    heads = [_named(execution_id(partition, uuid.decode()), text) for uuid, text in rows]
    return last.decode(), heads


def counted_of(reply: Any) -> tuple[str, int]:
    """How far it was looked, nothing when at the end, and how many fit."""
    last, count = reply
    return last.decode(), int(count)


def queues_of(reply: Any) -> tuple[str, list[tuple[str, int, int]]]:
    """How far it was looked, and by route how many are ready and when the oldest was made."""
    last, rows = reply
    return last.decode(), [
        (route.decode(errors="replace"), int(ready), int(oldest)) for route, ready, oldest in rows
    ]


def _named(id: ExecutionId, text: bytes | None) -> Execution:
    """The head of an execution that an index names."""
    head = head_of(id, text)
    if head is None:
        raise unreadable(id, f"{MISSING}, although an index names it")
    return head


def change_of(reply: Any) -> tuple[str, str, str, str]:
    """A queue's name, its partition, which version this is, and how it begins."""
    name, partition, version, score = reply
    # A route that is no text has no claimers who could be told of it.
    return (
        name.decode(errors="replace"),
        partition.decode(errors="replace"),
        version.decode(),
        score.decode(),
    )


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


def firsts_of(reply: Any) -> tuple[str, list[str]]:
    """Which version of a partition this is, and its first timer of each kind of documents."""
    version, firsts = reply
    return version.decode(), [first.decode() for first in firsts]


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


def newest_of(reply: Any) -> tuple[str, bytes] | None:
    """Where the last line of a partition is, and what it says, nothing if it is gone."""
    if reply is None:
        return None
    _time_ms, _version, spot, line = reply.split(b"\t", 3)
    return None if spot == b"0-0" else (spot.decode(), line)


def departing_of(partition: int, reply: Any) -> list[tuple[int, ExecutionId, int | None]]:
    """When each may go, and its revision; None where there is nothing."""
    return [
        (int(at_ms), execution_id(partition, uuid.decode()), int(rev) if rev else None)
        for uuid, at_ms, rev in reply
    ]


class Walked(NamedTuple):
    """How many entries were set right, how many records could still be looked at, and where to go
    on: in which index, nothing at the end, and after what in it."""

    repaired: int
    left: int
    walk: str
    after: str


def verified_of(reply: Any) -> Walked:
    repaired, left, walk, after = reply
    return Walked(repaired, left, walk.decode(), after.decode())


def purged_of(partition: int, reply: Any) -> Purged:
    alone, kept, flows, members = reply
    gone: list[str] = [execution_id(partition, uuid.decode()) for uuid in alone]
    gone += [id.decode() for id in flows]
    return Purged(
        gone, {execution_id(partition, uuid.decode()): until for uuid, until in kept}, members
    )


class Write(NamedTuple):
    """An entry of a feed: the number of the write, where the line before it is, and its lines as
    they are kept."""

    version: int
    before: str
    lines: list[bytes]


def feeds_of(reply: Any) -> list[tuple[int, list[Write]]]:
    """Partitions that have news, with their writes."""
    feeds: list[tuple[int, list[Write]]] = []
    for key, entries in reply or ():
        number = int(key[key.index(b"{fp:") + 4 : key.index(b"}")])
        writes = [
            Write(int(id.partition(b"-")[0]), cells[1].decode(), cells[3::2])
            for id, cells in entries
        ]
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


def appended_of(append: Append, told: Any) -> Appended | Rejected:
    is_written, rest = told
    if not is_written:
        return Rejected(append.id, readable(append.id, rest))
    return Appended(append.id, tuple(kept_of(member) for _, member in rest))


def kept_of(member: bytes) -> Kept:
    """Cells as far as they are there; a number that is none is left as it is."""
    cells: list[bytes | None] = [*member.split(b"\0", 5), *[None] * 5]
    generation, topic, key, epoch, n, body = cells[:6]
    return kept_or_damaged(
        (_words(topic), _words(key), body, _digits(generation), _digits(epoch), _digits(n))
    )


def _words(cell: bytes | None) -> str | bytes | None:
    try:
        return None if cell is None else cell.decode()
    except UnicodeDecodeError:
        return cell


def _digits(cell: bytes | None) -> int | bytes | None:
    return int(cell) if cell is not None and cell.isdigit() else cell


_document_words = msgspec.json.Decoder(tuple[str, ...])
DocumentTimer = tuple[int, tuple[str, ...], AnyDocument]


def document_of(named: tuple[str, ...], cells: Any) -> AnyDocument:
    """A document from the fields of its hash."""
    rev, due_ms, words, body = cells
    row: list[object] = [*named, None, None, (), body]
    fields: dict[str, tuple[int, Callable[[], object]]] = {
        "rev": (3, lambda: int(rev)),
        "due_ms": (4, lambda: int(due_ms) if due_ms else None),
        "words": (5, lambda: _document_words.decode(words)),
    }
    problem = ""
    for name, (place, read) in fields.items():
        try:
            row[place] = read()
        except (TypeError, ValueError, msgspec.DecodeError) as error:
            problem = problem or in_column(name, str(error))
    return damaged_document(row, problem) if problem else document_or_damaged(row)


def documents_of(kind: str, namespace: str, reply: Any) -> list[AnyDocument]:
    """Names with their hashes."""
    return [
        document_of((kind, namespace, name.decode(errors="replace")), cells)
        for name, cells in reply
    ]


def puts_of(reply: Any) -> list[tuple[bool, Any]]:
    """For each put whether it was written, and else the hash that is there, nothing if none is."""
    return [(not refused, refused[0] if refused else None) for refused in reply]


def documents_due_of(kind: str, reply: Any) -> tuple[str, str, str, list[DocumentTimer]]:
    """Version, first timer, first timer that has not passed, and documents whose time has come."""
    version, first, later, rows = reply
    timers: list[DocumentTimer] = []
    for namespace, name, due_ms, cells in rows:
        key = (kind, namespace.decode(errors="replace"), name.decode(errors="replace"))
        timers.append((int(due_ms), key, document_of(key, cells)))
    return version.decode(), first.decode(), later.decode(), timers
