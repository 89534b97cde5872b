"""Statements of the writing verbs, run inside the writer's transaction.

Each function does one thing for many records. Nothing here begins or ends a transaction, and
nothing decides: guards are compared, patches are written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

import msgspec

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Claim, Execution, Inserted, Lane, Lease, Submission
from flowfabric.core.transition import Held, LaneChange, LogLine, Transition, lane_changed
from flowfabric.store.columns import ATTEMPT_COLUMNS
from flowfabric.store.sqlite.flow_changes import add_lines, insert_members
from flowfabric.store.sqlite.patience import is_spoilt
from flowfabric.store.sqlite.rows import (
    attempt_cells,
    cells,
    decode_heads,
    decode_lanes,
    decode_leases,
    encode,
    ids_json,
    insert_cells,
)
from flowfabric.store.sqlite.statements import ALL_COLUMNS, one_text, run, run_many

Shape = tuple[bool, tuple[str, ...]]


def load_heads(connection: sqlite3.Connection, ids: Iterable[str]) -> dict[str, Execution]:
    text = one_text(connection, "execution_load", ids_json(ids), columns=ALL_COLUMNS)
    return {head.id: head for head in decode_heads(text)}


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
        write_new(connection, fresh, now_ms)
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
        for key, id, digest in msgspec.json.decode(text, type=list[tuple[str, str, str]]):
            known[namespace, key] = Inserted(ExecutionId(id), created=False, digest=digest)
    return known


def write_new(connection: sqlite3.Connection, fresh: Sequence[Submission], now_ms: int) -> int:
    """New executions and what is beside them; answers how many ids were free."""
    heads = [submission.execution for submission in fresh]
    rows = [insert_cells(head) for head in heads if not head.flow]
    count = run_many(connection, "execution_insert", rows)
    count += insert_members(connection, [head for head in heads if head.flow])
    if count < len(fresh):
        return count
    run_many(connection, "payload_insert", [(s.execution.id, s.payload) for s in fresh])
    lines = [(head.id, "submitted", "{}") for head in heads]
    run_many(connection, "log_append", lines, first=(now_ms,))
    tags = [(s.execution.id, key, value) for s in fresh for key, value in s.tags.items()]
    run_many(connection, "tag_upsert", tags)
    keys = [
        (s.execution.namespace, s.key, s.execution.id, s.digest, s.key_until_ms)
        for s in fresh
        # A member's key is part of its id.
        if s.key is not None and not s.execution.flow
    ]
    run_many(connection, "idempotency_upsert", keys)
    run(connection, "lane_ensure", ids_json({head.lane for head in heads}))
    return count


def claim(connection: sqlite3.Connection, ask: Claim) -> list[Lease]:
    numbers = _held_by(connection, ask.token) if ask.repeated else "[]"
    if numbers == "[]":
        numbers = _best(connection, ask)
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


def _held_by(connection: sqlite3.Connection, token: str) -> str:
    return one_text(connection, "execution_held", token)


def _best(connection: sqlite3.Connection, ask: Claim) -> str:
    ready: list[tuple[int, int, str, int]] = []
    if ask.only is not None:
        lanes = ids_json(ask.lanes)
        text = one_text(connection, "execution_ready_one", ask.only, ask.namespace, lanes)
        ready += _peeked.decode(text)
    else:
        for lane in ask.lanes:
            text = one_text(connection, "execution_ready", ask.namespace, lane, ask.limit)
            ready += _peeked.decode(text)
    ready.sort()
    return ids_json(n for _, _, _, n in ready[: ask.limit])


_peeked = msgspec.json.Decoder(list[tuple[int, int, str, int]])


def _take(connection: sqlite3.Connection, ask: Claim, numbers: str) -> None:
    until_ms = ask.now_ms + ask.ttl_ms
    name, line = ("execution_claim", "claimed") if ask.start else ("execution_grant", "granted")
    run(connection, name, numbers, ask.token, ask.worker, until_ms, ask.now_ms)
    run(connection, "log_claims", numbers, ask.now_ms, line)


def patch(
    connection: sqlite3.Connection, transitions: Sequence[Transition], store_now_ms: int
) -> int:
    """Write every patch whose guard holds; answers how many did."""
    groups: dict[Shape, list[Transition]] = {}
    for transition in transitions:
        shape = (isinstance(transition.guard, Held), tuple(transition.patch))
        groups.setdefault(shape, []).append(transition)
    changed = 0
    for (is_held, names), group in groups.items():
        if not is_held:
            rows = [cells((t.id, t.guard[0], *t.patch.values())) for t in group]
            changed += run_many(connection, "execution_patch_seen", rows, names=names)
        elif all(t.patch == group[0].patch for t in group):
            changed += _patch_alike(connection, group, store_now_ms)
        else:
            rows = [cells((t.id, *t.guard, *t.patch.values())) for t in group]
            first = (store_now_ms,)
            changed += run_many(connection, "execution_patch_held", rows, names=names, first=first)
    return changed


def _patch_alike(
    connection: sqlite3.Connection, group: Sequence[Transition], store_now_ms: int
) -> int:
    values = group[0].patch
    return run_many(
        connection,
        "execution_patch_alike",
        [(t.id, *t.guard) for t in group],
        names=tuple(values),
        first=[store_now_ms, *cells(values.values())],
    )


def write_beside(
    connection: sqlite3.Connection, transitions: Sequence[Transition], now_ms: int
) -> None:
    """What goes with patches that were written: attempts, tags, lines of log and outbox."""
    attempts = [attempt_cells(t.attempt) for t in transitions if t.attempt is not None]
    run_many(connection, "attempt_upsert", attempts, names=ATTEMPT_COLUMNS)
    tags = [(t.id, key, value) for t in transitions for key, value in (t.tags or {}).items()]
    run_many(connection, "tag_upsert", tags)
    lines = [(t.id, t.log.kind, _detail(t.log)) for t in transitions if t.log is not None]
    run_many(connection, "log_append", lines, first=(now_ms,))
    add_lines(connection, [t.line for t in transitions if t.line is not None])


def _detail(line: LogLine) -> str:
    return encode(line.detail).decode() if line.detail else "{}"


def change_lanes(connection: sqlite3.Connection, changes: Sequence[LaneChange]) -> bool:
    """Set the lanes, or change nothing when one of them is not as it was seen."""
    lanes = changed_lanes(connection, changes)
    if len(lanes) < len(changes):
        return False
    for lane in lanes:
        run(connection, "lane_set", *cells((lane.name, lane.state, lane.rev)))
    return True


def changed_lanes(connection: sqlite3.Connection, changes: Sequence[LaneChange]) -> list[Lane]:
    """The lanes as they would be, of those that are as they were seen."""
    if not changes:
        return []
    text = one_text(connection, "lane_load", ids_json(change.name for change in changes))
    known = {lane.name: lane for lane in decode_lanes(text)}
    after = [lane_changed(known.get(change.name), change) for change in changes]
    return [lane for lane in after if lane is not None]
