"""What an attempt leaves beside its head: the exception that ended it, and the lines it logged.

Both are entries of its execution. Keys begin with the number of the attempt, so that they sort as
the attempts do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from flowfabric.core.entries import Entry, Kept
from flowfabric.core.failures import FailureReport, decode_report, encode_report
from flowfabric.core.model import Attempt, Execution
from flowfabric.core.states import AttemptLifecycle

FAILURES = "failure"
LINES = "log"

_OUTCOMES = {
    AttemptLifecycle.ENDED_SUCCESS: "success",
    AttemptLifecycle.ENDED_FAILURE: "failed",
    AttemptLifecycle.ENDED_CANCELLED: "cancelled",
    AttemptLifecycle.INTERRUPTED_RECLAIMED: "lost",
    AttemptLifecycle.SUSPENDED: "suspended",
}


class AttemptLine(msgspec.Struct, frozen=True, array_like=True):
    """One line that a task logged with `ctx.log`."""

    at_ms: int
    level: str
    message: str


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt. `outcome`: success, failed, cancelled, lost, running."""

    attempt: int
    kind: str
    outcome: str
    worker: str
    started_ms: int | None
    ended_ms: int | None
    reason: str
    category: str
    failure: FailureReport | None
    log: tuple[AttemptLine, ...]


_encode_lines = msgspec.json.Encoder().encode
_decode_lines = msgspec.json.Decoder(tuple[AttemptLine, ...]).decode


def attempt_key(attempt: int) -> str:
    return f"{attempt:010d}"


def failure_entry(head: Execution, report: FailureReport) -> Entry:
    return Entry(FAILURES, attempt_key(head.attempt), encode_report(report))


def lines_entry(head: Execution, n: int, lines: Sequence[AttemptLine]) -> Entry:
    """An attempt that is delayed goes on in another epoch, and counts from the beginning there."""
    key = f"{attempt_key(head.attempt)}.{head.epoch:010d}.{n:06d}"
    return Entry(LINES, key, _encode_lines(lines), n)


def records_of(
    attempts: Iterable[Attempt], failures: Iterable[Kept], lines: Iterable[Kept]
) -> list[AttemptRecord]:
    reports = {entry.key: decode_report(entry.body, entry.problem) for entry in failures}
    logged: dict[str, list[AttemptLine]] = {}
    for entry in lines:
        logged.setdefault(entry.key.partition(".")[0], []).extend(_lines_of(entry))
    return [
        AttemptRecord(
            attempt=each.attempt,
            kind=each.kind,
            outcome=_OUTCOMES.get(each.lifecycle, "running"),
            worker=each.worker,
            started_ms=each.started_ms,
            ended_ms=each.ended_ms,
            reason=each.detail,
            category=each.category,
            failure=reports.get(attempt_key(each.attempt)),
            log=tuple(logged.get(attempt_key(each.attempt), ())),
        )
        for each in attempts
    ]


def _lines_of(entry: Kept) -> tuple[AttemptLine, ...]:
    """Lines that cannot be read keep nobody from the others, but are not left out silently."""
    try:
        return _decode_lines(entry.body)
    except msgspec.DecodeError as error:
        problem = entry.problem or str(error)
        return (AttemptLine(0, "ERROR", f"lines {entry.key} cannot be read: {problem}"),)
