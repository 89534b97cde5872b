"""Guards and what they guard, inside the writer's transaction: transitions one by one, changesets
each as a whole. Guards are compared, nothing is decided.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from flowfabric.core.model import Execution, Malformed
from flowfabric.core.transition import (
    Applied,
    Changeset,
    LaneChange,
    Rejected,
    Seen,
    Transition,
    guard_holds,
)
from flowfabric.store.sqlite import changes as sql
from flowfabric.store.sqlite import entries, flow_changes
from flowfabric.store.sqlite.reads import current_rows
from flowfabric.store.sqlite.statements import Part, run_all, run_guarded, run_part


def apply_parts(transitions: Sequence[Transition], now_ms: int) -> list[Part]:
    """All that is written if every guard holds."""
    beside, log = _beside_part(transitions), sql.log_part(sql.told(transitions), now_ms)
    return [*sql.patch_parts(transitions), beside, log]


def apply(
    connection: sqlite3.Connection,
    transitions: Sequence[Transition],
    ready: Sequence[Part],
    *,
    now_ms: int,
    store_now_ms: int,
) -> list[Applied | Rejected]:
    """All at once; only if some guard did not hold, look which, and write the others."""
    if _is_written(connection, ready, store_now_ms):
        return [Applied(transition.id) for transition in transitions]
    current = current_rows(connection, [t.id for t in transitions])
    good = [t for t in transitions if _holds(t, current.get(t.id), store_now_ms)]
    for part in apply_parts(good, now_ms):
        # A row whose revision is no number is left as it is, and stops no other.
        run_part(connection, part, store_now_ms)
    written = {t.id for t in good}
    return [
        Applied(t.id) if t.id in written else Rejected(t.id, _readable(current.get(t.id)))
        for t in transitions
    ]


def _beside_part(transitions: Sequence[Transition]) -> Part:
    """What goes with patches: attempts, tags, lines of the outbox, entries."""
    beside = sql.beside_statements(transitions)
    return Part([*beside, *entries.insert_statements(transitions)])


def commit_parts(batch: Sequence[Changeset], now_ms: int) -> list[Part]:
    """All that is written if every guard holds, but for lanes; what has a guard comes first, and
    the log in one go, whoever has something to say."""
    transitions = [t for changes in batch for t in changes.transitions]
    members = [member for changes in batch for member in changes.members]
    notes = [note for changes in batch for note in changes.notes]
    log = [*sql.submitted(members), *sql.told(transitions), *sql.noted(notes)]
    return [
        *sql.patch_parts(transitions),
        *flow_changes.owner_parts(batch),
        *sql.new_parts(members),
        _beside_part(transitions),
        flow_changes.owned_part(batch),
        sql.log_part(log, now_ms),
    ]


def commit_each(
    connection: sqlite3.Connection,
    batch: Sequence[Changeset],
    ready: Sequence[Part],
    *,
    now_ms: int,
    store_now_ms: int,
) -> list[bool]:
    """All at once; only if some guard did not hold, look which, and write the others."""
    if _is_written(connection, ready, store_now_ms, _lanes(batch)):
        return [True for _ in batch]
    answers = _guarded(connection, batch, store_now_ms)
    good = [changes for changes, is_good in zip(batch, answers, strict=True) if is_good]
    sql.change_lanes(connection, _lanes(good))
    run_all(connection, commit_parts(good, now_ms), store_now_ms)
    return answers


def _is_written(
    connection: sqlite3.Connection,
    ready: Sequence[Part],
    store_now_ms: int,
    lanes: Sequence[LaneChange] = (),
) -> bool:
    """Write everything, or nothing if a guard does not hold."""
    connection.execute("SAVEPOINT parts")
    is_good = sql.change_lanes(connection, lanes) and run_guarded(connection, ready, store_now_ms)
    if not is_good:
        connection.execute("ROLLBACK TO parts")
    connection.execute("RELEASE parts")
    return is_good


def _lanes(batch: Sequence[Changeset]) -> list[LaneChange]:
    return [lane for changes in batch for lane in changes.lanes]


def _guarded(
    connection: sqlite3.Connection, batch: Sequence[Changeset], store_now_ms: int
) -> list[bool]:
    """Whether every guard of each holds. Lanes are not written: no two are about the same one."""
    transitions = [t for changes in batch for t in changes.transitions]
    current = current_rows(connection, [t.id for t in transitions]) if transitions else {}
    revs = flow_changes.seen_revs(connection, batch)
    members = [member for changes in batch for member in changes.members]
    existing = sql.existing(connection, members) if members else set()
    return [
        all(_holds(t, current.get(t.id), store_now_ms) for t in changes.transitions)
        and flow_changes.holds(changes, revs, existing)
        and len(sql.changed_lanes(connection, changes.lanes)) == len(changes.lanes)
        for changes in batch
    ]


def _holds(transition: Transition, row: Execution | Malformed | None, store_now_ms: int) -> bool:
    if isinstance(row, Malformed):
        return isinstance(transition.guard, Seen) and transition.guard.rev == row.rev
    return row is not None and guard_holds(transition.guard, row, store_now_ms)


def _readable(row: Execution | Malformed | None) -> Execution | None:
    return row if isinstance(row, Execution) else None
