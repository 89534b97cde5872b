"""Applies and commits: one statement for changes of one shape, a transaction for several.

Either way all rows are locked before any is judged, in the order of their ids, and a guard is
judged by the locked row.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowfabric.core.transition import (
    Applied,
    Changeset,
    Held,
    LaneChange,
    LogLine,
    Rejected,
    Transition,
    lane_changed,
)
from flowfabric.store.columns import ATTEMPT_COLUMNS
from flowfabric.store.postgres.calls import Call, answered
from flowfabric.store.postgres.connections import Undone, transaction
from flowfabric.store.postgres.driver import Connection
from flowfabric.store.postgres.flow_rows import LINE, cells_of
from flowfabric.store.postgres.rows import (
    Cell,
    attempt_cells,
    cell,
    columns_of,
    encode,
    entries_text,
    head_of_json,
    lane_of,
)
from flowfabric.store.postgres.statements import Argument, Shape

Answers = dict[str, Applied | Rejected]

NO_ATTEMPT: tuple[Cell, ...] = (None,) * len(ATTEMPT_COLUMNS)
_NO_LINE: tuple[Cell, ...] = (None,) * len(LINE)


async def apply(
    connection: Connection, call: Call, transitions: Sequence[Transition]
) -> list[Applied | Rejected]:
    groups = _by_shape(transitions)
    if len(groups) == 1 and not any(t.tags for t in transitions):
        answers = await _apply_shape(connection, call, transitions, whole=False)
    else:
        async with transaction(connection, call.reserve):
            answers = await _apply_many(connection, call, transitions, whole=False)
    return [answers[transition.id] for transition in transitions]


def is_plain(changes: Changeset) -> bool:
    """Whether it is about executions or lanes alone, and about some."""
    kinds = {name for name in Changeset.__struct_fields__ if getattr(changes, name)}
    return bool(kinds) and kinds <= {"transitions", "lanes"}


async def commit(connection: Connection, call: Call, changes: Changeset) -> None:
    """All of it, or `Undone`; who holds the transaction must let that pass."""
    transitions = changes.transitions
    groups = _by_shape(transitions)
    if len(groups) == 1 and not changes.lanes and not any(t.tags for t in transitions):
        answers = await _apply_shape(connection, call, transitions, whole=True)
        _require_all(answers)
        return
    async with transaction(connection, call.reserve):
        await _apply_many(connection, call, transitions, whole=True)
        await _change_lanes(connection, call, changes.lanes)
        await _tell(connection, call)


def _require_all(answers: Answers) -> None:
    if not all(isinstance(answer, Applied) for answer in answers.values()):
        raise Undone


def _by_shape(transitions: Sequence[Transition]) -> list[list[Transition]]:
    groups: dict[tuple[bool, tuple[str, ...]], list[Transition]] = {}
    for transition in transitions:
        shape = (isinstance(transition.guard, Held), tuple(transition.patch))
        groups.setdefault(shape, []).append(transition)
    return list(groups.values())


async def _apply_many(
    connection: Connection, call: Call, transitions: Sequence[Transition], *, whole: bool
) -> Answers:
    """Lock everything, write shape by shape, and append the lines in the order given."""
    arguments = {**call.arguments, "ids": [transition.id for transition in transitions]}
    answered(await call.sql.named("execution_lock").fetch(connection, arguments), call)
    # A call that had to wait for locks is late, not wrong: its clock was compared before.
    answers: Answers = {}
    for group in _by_shape(transitions):
        replies = await _apply_shape(
            connection, call, group, whole=whole, is_checked=True, with_lines=False
        )
        answers.update(replies)
        if whole:
            _require_all(replies)
    written = [t for t in transitions if isinstance(answers[t.id], Applied)]
    await _write_tags(connection, call, written)
    await _write_lines(connection, call, written)
    return answers


async def _apply_shape(
    connection: Connection,
    call: Call,
    transitions: Sequence[Transition],
    *,
    whole: bool,
    is_checked: bool = False,
    with_lines: bool = True,
) -> Answers:
    shape = _shape_of(transitions, with_lines=with_lines)
    arguments: dict[str, Argument] = {
        **call.arguments,
        **_given(transitions, shape),
        "whole": whole,
        "total": len(transitions),
    }
    if is_checked:
        arguments["caller_ms"] = None
    records = answered(await call.sql.shaped(shape).fetch(connection, arguments), call)
    if records[0]["written"] == len(transitions):
        return {transition.id: Applied(transition.id) for transition in transitions}
    written = set(records[0]["ids"])
    refused = [head_of_json(record["refused"]) for record in records if record["refused"]]
    current = {head.id: head for head in refused if head is not None}
    return {
        t.id: Applied(t.id) if t.id in written else Rejected(t.id, current.get(t.id))
        for t in transitions
    }


def _shape_of(transitions: Sequence[Transition], *, with_lines: bool) -> Shape:
    first = transitions[0]
    return Shape(
        held=isinstance(first.guard, Held),
        columns=tuple(first.patch),
        alike=all(t.patch == first.patch for t in transitions),
        lines=with_lines and any(t.log is not None for t in transitions),
        attempts=any(t.attempt is not None for t in transitions),
        outbox=any(t.line is not None for t in transitions),
        entries=any(t.entries for t in transitions),
    )


def _given(transitions: Sequence[Transition], shape: Shape) -> dict[str, Argument]:
    """The arguments of a shape, one array per column."""
    given: dict[str, Argument] = {"ids": [t.id for t in transitions]}
    guard = ("held_epoch", "held_token", "held_reasons") if shape.held else ("seen_rev",)
    guards = columns_of([t.guard.compared for t in transitions], len(guard))
    given.update(zip(guard, guards, strict=True))
    if shape.alike:
        given.update((f"to_{c}", cell(v)) for c, v in transitions[0].patch.items())
    else:
        for column in shape.columns:
            given[f"given_{column}"] = [cell(t.patch[column]) for t in transitions]
    if shape.lines:
        given["line_kind"] = [t.log.kind if t.log else None for t in transitions]
        given["line_detail"] = [detail(t.log) if t.log else None for t in transitions]
    if shape.attempts:
        rows = [attempt_cells(t.attempt) if t.attempt else NO_ATTEMPT for t in transitions]
        names = (f"kept_{column}" for column in ATTEMPT_COLUMNS)
        given.update(zip(names, columns_of(rows, len(ATTEMPT_COLUMNS)), strict=True))
    if shape.outbox:
        rows = [cells_of(t.line) if t.line else _NO_LINE for t in transitions]
        given.update(zip((f"out_{c}" for c in LINE), columns_of(rows, len(LINE)), strict=True))
    if shape.entries:
        given["entries"] = [entries_text(t.entries) for t in transitions]
    return given


def detail(line: LogLine) -> str:
    return encode(line.detail).decode() if line.detail else "{}"


async def _write_tags(
    connection: Connection, call: Call, transitions: Sequence[Transition]
) -> None:
    tags = [(t.id, key, value) for t in transitions for key, value in (t.tags or {}).items()]
    if tags:
        named = zip(("ids", "keys", "values"), columns_of(tags, 3), strict=True)
        await call.sql.named("tag_upsert").fetch(connection, dict(named))


async def _write_lines(
    connection: Connection, call: Call, transitions: Sequence[Transition]
) -> None:
    lines = [(t.id, t.log.kind, detail(t.log)) for t in transitions if t.log is not None]
    if lines:
        named = zip(("ids", "kinds", "details"), columns_of(lines, 3), strict=True)
        arguments: dict[str, Argument] = {**dict(named), "now_ms": call.now_ms}
        await call.sql.named("log_append").fetch(connection, arguments)


async def _change_lanes(connection: Connection, call: Call, changes: Sequence[LaneChange]) -> None:
    """Set the lanes, or refuse when one of them is not as it was seen."""
    if not changes:
        return
    names = {"names": [change.name for change in changes]}
    records = await call.sql.named("lane_lock").fetch(connection, names)
    known = {lane.name: lane for lane in map(lane_of, records)}
    after = [lane_changed(known.get(change.name), change) for change in changes]
    lanes = [lane for lane in after if lane is not None]
    if len(lanes) < len(changes):
        raise Undone
    cells = columns_of([(lane.name, cell(lane.state), lane.rev) for lane in lanes], 3)
    named = dict(zip(("names", "states", "revs"), cells, strict=True))
    if len(await call.sql.named("lane_set").fetch(connection, named)) < len(lanes):
        raise Undone


async def _tell(connection: Connection, call: Call) -> None:
    if call.notice:
        await call.sql.named("notice").fetch(connection, call.arguments)
