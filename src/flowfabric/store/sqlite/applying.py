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
    Rejected,
    Seen,
    Transition,
    guard_holds,
)
from flowfabric.store.sqlite import changes as sql
from flowfabric.store.sqlite import flow_changes
from flowfabric.store.sqlite.reads import current_rows


def apply(
    connection: sqlite3.Connection,
    transitions: Sequence[Transition],
    now_ms: int,
    store_now_ms: int,
) -> list[Applied | Rejected]:
    """All at once; only if some guard did not hold, look which, and write the others."""
    connection.execute("SAVEPOINT apply")
    if sql.patch(connection, transitions, store_now_ms) == len(transitions):
        connection.execute("RELEASE apply")
        _write_with(connection, transitions, now_ms)
        return [Applied(transition.id) for transition in transitions]
    connection.execute("ROLLBACK TO apply")
    connection.execute("RELEASE apply")
    current = current_rows(connection, [t.id for t in transitions])
    good = [t for t in transitions if _holds(t, current.get(t.id), store_now_ms)]
    sql.patch(connection, good, store_now_ms)
    _write_with(connection, good, now_ms)
    written = {t.id for t in good}
    return [
        Applied(t.id) if t.id in written else Rejected(t.id, _readable(current.get(t.id)))
        for t in transitions
    ]


def _write_with(
    connection: sqlite3.Connection, transitions: Sequence[Transition], now_ms: int
) -> None:
    sql.write_beside(connection, transitions)
    sql.append(connection, sql.told(transitions), now_ms)


def commit_each(
    connection: sqlite3.Connection, batch: Sequence[Changeset], now_ms: int, store_now_ms: int
) -> list[bool]:
    """All at once; only if some guard did not hold, look which, and write the others."""
    connection.execute("SAVEPOINT commits")
    if _write_all(connection, batch, now_ms, store_now_ms):
        connection.execute("RELEASE commits")
        return [True for _ in batch]
    connection.execute("ROLLBACK TO commits")
    connection.execute("RELEASE commits")
    answers = _guarded(connection, batch, store_now_ms)
    good = [changes for changes, is_good in zip(batch, answers, strict=True) if is_good]
    if not _write_all(connection, good, now_ms, store_now_ms):
        raise sqlite3.IntegrityError("guards that held did not hold")
    return answers


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


def _write_all(
    connection: sqlite3.Connection, batch: Sequence[Changeset], now_ms: int, store_now_ms: int
) -> bool:
    """Write everything, or something and answer False because a guard does not hold."""
    transitions = [t for changes in batch for t in changes.transitions]
    members = [member for changes in batch for member in changes.members]
    lanes = [lane for changes in batch for lane in changes.lanes]
    return (
        sql.patch(connection, transitions, store_now_ms) == len(transitions)
        and sql.change_lanes(connection, lanes)
        and flow_changes.write_owners(connection, batch)
        and (not members or sql.write_new(connection, members) == len(members))
        and _write_rest(connection, batch, now_ms)
    )


def _write_rest(connection: sqlite3.Connection, batch: Sequence[Changeset], now_ms: int) -> bool:
    """What has no guard of its own; the log in one go, whoever has something to say."""
    sql.write_beside(connection, [t for changes in batch for t in changes.transitions])
    flow_changes.write(connection, batch)
    new = [line for changes in batch for line in sql.submitted(changes.members)]
    told = [line for changes in batch for line in sql.told(changes.transitions)]
    noted = [line for changes in batch for line in sql.noted(changes.notes)]
    sql.append(connection, [*new, *told, *noted], now_ms)
    return True


def _holds(transition: Transition, row: Execution | Malformed | None, store_now_ms: int) -> bool:
    if isinstance(row, Malformed):
        return isinstance(transition.guard, Seen) and transition.guard.rev == row.rev
    return row is not None and guard_holds(transition.guard, row, store_now_ms)


def _readable(row: Execution | Malformed | None) -> Execution | None:
    return row if isinstance(row, Execution) else None
