"""Statements of the writing verbs, made ready as parts or run inside the writer's transaction.

Each function does one thing for many records. Nothing here begins or ends a transaction, and
nothing decides: guards are compared, patches are written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from flowfabric.core.flow.changes import Note
from flowfabric.core.model import Claim, Execution, Inserted, Lane, Lease, Submission, Value
from flowfabric.core.transition import Held, LaneChange, Transition, lane_changed
from flowfabric.store.columns import ATTEMPT_COLUMNS, INSERT_COLUMNS, MEMBER_COLUMNS
from flowfabric.store.damage import known_key
from flowfabric.store.peeking import first_depth
from flowfabric.store.sqlite.beside_rows import decode_lanes
from flowfabric.store.sqlite.flow_rows import LINE_NAMES
from flowfabric.store.sqlite.patience import is_spoilt
from flowfabric.store.sqlite.rows import (
    Cell,
    attempt_row,
    cells,
    decode_heads,
    decode_leases,
    encode,
    head_row,
    ids_json,
    member_row,
)
from flowfabric.store.sqlite.spoilt import text_or_rows
from flowfabric.store.sqlite.statements import (
    ALL_COLUMNS,
    Part,
    Statement,
    many,
    one,
    one_text,
    run,
    run_all,
)
from flowfabric.store.trips import Trips

# How much further a queue is looked into each time.
PEEK_GROWTH = 4

Shape = tuple[bool, tuple[str, ...]]
LogRow = tuple[str, str, str]


def load_heads(connection: sqlite3.Connection, ids: Iterable[str]) -> dict[str, Execution]:
    found = text_or_rows(connection, "execution_load", ids_json(ids), columns=ALL_COLUMNS)
    return {head.id: head for head in decode_heads(found)}


def insert(
    connection: sqlite3.Connection, batch: Sequence[Submission], now_ms: int
) -> list[Inserted]:
    known = _known_keys(connection, batch, now_ms)
    there = existing(connection, batch)
    fresh: list[Submission] = []
    answers: list[Inserted] = []
    for submission in batch:
        answer = _answer(submission, known, there, now_ms)
        answers.append(answer)
        if answer.created:
            fresh.append(submission)
    if fresh:
        run_all(connection, [*new_parts(fresh), log_part(submitted(fresh), now_ms)])
    return answers


def _answer(
    submission: Submission,
    known: dict[tuple[str, str], Inserted],
    existing: set[str],
    now_ms: int,
) -> Inserted:
    head = submission.execution
    if submission.key is not None:
        taken = known.get((head.namespace, submission.key))
        if taken is not None:
            return taken
    if head.id in existing:
        return Inserted(head.id, created=False)
    if not submission.create:
        return Inserted(head.id, created=False, exists=False)
    existing.add(head.id)
    if submission.key is not None and submission.key_until_ms > now_ms:
        entry = Inserted(head.id, created=False, digest=submission.digest)
        known[head.namespace, submission.key] = entry
    return Inserted(head.id, created=True)


def existing(connection: sqlite3.Connection, batch: Sequence[Submission]) -> set[str]:
    ids = ids_json(submission.execution.id for submission in batch)
    return set(msgspec.json.decode(one_text(connection, "execution_existing", ids), type=list[str]))


def _known_keys(
    connection: sqlite3.Connection, batch: Sequence[Submission], now_ms: int
) -> dict[tuple[str, str], Inserted]:
    keys: dict[str, list[str]] = {}
    for submission in batch:
        if submission.key is not None:
            keys.setdefault(submission.execution.namespace, []).append(submission.key)
    known: dict[tuple[str, str], Inserted] = {}
    for namespace, names in keys.items():
        text = one_text(connection, "idempotency_load", namespace, ids_json(names), now_ms)
        for key, id, digest in msgspec.json.decode(
            text, type=list[tuple[str, str | None, str | None]]
        ):
            known[namespace, key] = known_key(id, digest)
    return known


def new_parts(fresh: Sequence[Submission]) -> list[Part]:
    """New executions, whose ids must be free, and what is beside them."""
    if not fresh:
        return []
    heads = [submission.execution for submission in fresh]
    alone = [head_row(head) for head in heads if not head.flow]
    members = [member_row(head) for head in heads if head.flow]
    tags = [(s.execution.id, key, value) for s in fresh for key, value in s.tags.items()]
    keys = [
        (s.execution.namespace, s.key, s.execution.id, s.digest, s.key_until_ms)
        for s in fresh
        # A member's key is part of its id.
        if s.key is not None and not s.execution.flow
    ]
    return [
        Part(
            [
                *many("execution_insert", alone, names=INSERT_COLUMNS),
                *many("execution_insert", members, names=MEMBER_COLUMNS),
            ],
            len(fresh),
        ),
        Part(
            [
                *many("payload_insert", [(s.execution.id, s.payload) for s in fresh]),
                *many("tag_upsert", tags),
                *many("idempotency_upsert", keys),
                one("lane_ensure", ids_json({head.lane for head in heads})),
            ]
        ),
    ]


def submitted(fresh: Sequence[Submission]) -> list[LogRow]:
    return [(submission.execution.id, "submitted", "{}") for submission in fresh]


def log_part(lines: Sequence[LogRow], now_ms: int) -> Part:
    """Lines of the log; each says how its row is when it is written."""
    return Part(many("log_append", lines, first=(now_ms,)))


def claim(connection: sqlite3.Connection, ask: Claim, trips: Trips) -> list[Lease]:
    numbers = _held_by(connection, ask) if ask.repeated else "[]"
    if numbers == "[]":
        numbers = _best(connection, ask, trips)
        if numbers == "[]":
            return []
        _take(connection, ask, numbers)
    leases = _leases(connection, numbers)
    leases.sort(key=lambda lease: (-lease.head.priority, lease.head.created_ms, lease.head.id))
    return leases


def _leases(connection: sqlite3.Connection, numbers: str) -> list[Lease]:
    """Those that can be read; the others keep their lease until their timer finds them."""
    try:
        text = one_text(connection, "execution_leases", numbers, columns=ALL_COLUMNS)
    except (sqlite3.OperationalError, sqlite3.DataError) as error:
        if not is_spoilt(error):
            raise
        # One of them cannot be read, or all of them are too much for one answer.
        each = msgspec.json.decode(numbers, type=list[int])
        middle = len(each) // 2
        halves = (each[:middle], each[middle:]) if middle else ()
        return [lease for half in halves for lease in _leases(connection, ids_json(half))]
    return decode_leases(text)


def _held_by(connection: sqlite3.Connection, ask: Claim) -> str:
    return one_text(connection, "execution_held", ask.token, ask.now_ms)


def _best(connection: sqlite3.Connection, ask: Claim, trips: Trips) -> str:
    if ask.only is not None:
        routes = ids_json(ask.routes)
        text = one_text(connection, "execution_ready_one", ask.only, ask.namespace, routes)
        ready = _peeked.decode(text)
    elif len(ask.routes) == 1:
        text = one_text(connection, "execution_ready", ask.namespace, ask.routes[0], ask.limit)
        ready = _peeked.decode(text)
    else:
        return ids_json(n for _, _, _, n in _best_of_many(connection, ask, trips))
    trips.look_at(len(ready))
    return ids_json(n for _, _, _, n in ready[: ask.limit])


def _best_of_many(connection: sqlite3.Connection, ask: Claim, trips: Trips) -> list[_Ready]:
    """A few of each route, then more of those whose few are all among the best: behind them there
    may be better ones than the last of those."""
    found: dict[str, list[_Ready]] = {}
    routes, depth, limit = list(dict.fromkeys(ask.routes)), 0, ask.limit
    best: list[_Ready] = []
    while routes and depth < limit:
        depth = min(depth * PEEK_GROWTH, limit) or first_depth(limit, len(routes))
        asked = ids_json(routes)
        text = one_text(connection, "execution_ready_each", ask.namespace, asked, depth)
        peeked = _peeked_each.decode(text)
        trips.look_at(sum(map(len, peeked)))
        found.update(zip(routes, peeked, strict=True))
        best = sorted(row for rows in found.values() for row in rows)[:limit]
        last = best[-1:] if len(best) == limit else []
        full = [(route, found[route]) for route in routes if len(found[route]) == depth]
        routes = [route for route, rows in full if not last or rows[-1] <= last[0]]
    return best


_Ready = tuple[int, int, str, int]
_peeked = msgspec.json.Decoder(list[_Ready])
_peeked_each = msgspec.json.Decoder(list[list[_Ready]])


def _take(connection: sqlite3.Connection, ask: Claim, numbers: str) -> None:
    until_ms = ask.now_ms + ask.ttl_ms
    name, line = ("execution_claim", "claimed") if ask.start else ("execution_grant", "granted")
    run(connection, name, numbers, ask.token, ask.worker, until_ms, ask.now_ms)
    run(connection, "log_claims", numbers, ask.now_ms, line)


def patch_parts(transitions: Sequence[Transition]) -> list[Part]:
    """Every patch under its guard: a part for those that write the same columns."""
    groups: dict[Shape, list[Transition]] = {}
    for transition in transitions:
        shape = (isinstance(transition.guard, Held), tuple(transition.patch))
        groups.setdefault(shape, []).append(transition)
    return [
        Part(_patches(is_held, names, group), len(group))
        for (is_held, names), group in groups.items()
    ]


def _patches(is_held: bool, names: tuple[str, ...], group: Sequence[Transition]) -> list[Statement]:
    rows: list[tuple[Cell, ...]] = [(t.id, *t.guard.compared) for t in group]
    values = group[0].patch
    if all(t.patch == values for t in group):
        statement = "execution_patch_held_alike" if is_held else "execution_patch_seen_alike"
        return many(statement, rows, names=names, first=tuple(values.values()), is_timed=True)
    statement = "execution_patch_held" if is_held else "execution_patch_seen"
    rows = [(*row, *t.patch.values()) for row, t in zip(rows, group, strict=True)]
    return many(statement, rows, names=names, is_timed=True)


def beside_statements(transitions: Sequence[Transition]) -> list[Statement]:
    """What goes with patches beside entries: attempts, tags, lines of the outbox."""
    attempts = [attempt_row(t.attempt) for t in transitions if t.attempt is not None]
    tags = [(t.id, key, value) for t in transitions if t.tags for key, value in t.tags.items()]
    lines = [t.line for t in transitions if t.line is not None]
    return [
        *many("attempt_upsert", attempts, names=ATTEMPT_COLUMNS),
        *many("tag_upsert", tags),
        *many("line_upsert", lines, names=LINE_NAMES),
    ]


def told(transitions: Sequence[Transition]) -> list[LogRow]:
    """What transitions say to the log."""
    return [(t.id, t.log.kind, _detail(t.log.detail)) for t in transitions if t.log is not None]


def noted(notes: Iterable[Note]) -> list[LogRow]:
    return [(note.execution, note.kind, _detail(note.detail)) for note in notes]


def _detail(fields: Mapping[str, Value]) -> str:
    return encode(fields).decode() if fields else "{}"


def change_lanes(connection: sqlite3.Connection, changes: Sequence[LaneChange]) -> bool:
    """Set the lanes, or change nothing when one of them is not as it was seen."""
    lanes = changed_lanes(connection, changes)
    if len(lanes) < len(changes):
        return False
    for lane in lanes:
        run(connection, "lane_set", *cells([(lane.name, lane.state, lane.rev)]))
    return True


def changed_lanes(connection: sqlite3.Connection, changes: Sequence[LaneChange]) -> list[Lane]:
    """The lanes as they would be, of those that are as they were seen."""
    if not changes:
        return []
    text = one_text(connection, "lane_load", ids_json(change.name for change in changes))
    known = {lane.name: lane for lane in decode_lanes(text)}
    after = [lane_changed(known.get(change.name), change) for change in changes]
    return [lane for lane in after if lane is not None]
