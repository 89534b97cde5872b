"""One execution as an operator sees it: facts, attempts, tracebacks, log lines, events."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import msgspec

from flowfabric.app import App
from flowfabric.cli.operating.texts import ago, clock, pairs, took
from flowfabric.cli.terminal import console_for, table_of
from flowfabric.core.attempt_record import AttemptRecord
from flowfabric.core.explain import Explanation
from flowfabric.core.model import Event
from flowfabric.engine.reading import Snapshot
from flowfabric.printing import one_line

ATTEMPT_TITLES = ("attempt", "kind", "outcome", "worker", "started", "took", "why")
EVENT_TITLES = ("at", "event", "state", "attempt", "detail")


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One execution as it is now."""

    now_ms: int
    execution: Snapshot
    explanation: Explanation
    attempts: list[AttemptRecord]
    events: list[Event]


async def read(app: App, id: str) -> Seen:
    handle = app.handle(id)
    return Seen(
        now_ms=app.engine.clock.now_ms(),
        execution=await handle.status(),
        explanation=await handle.explain(),
        attempts=await handle.attempts(),
        events=await handle.events(),
    )


def show(seen: Seen) -> None:
    console = console_for(sys.stdout)
    console.print(table_of(("execution", one_line(seen.execution.id)), _facts(seen)))
    if seen.attempts:
        console.print(table_of(ATTEMPT_TITLES, [_attempt_row(each) for each in seen.attempts]))
    for attempt in seen.attempts:
        _print_failure(attempt)
        _print_lines(attempt)
    console.print(table_of(EVENT_TITLES, [_event_row(each) for each in seen.events]))


def _facts(seen: Seen) -> Iterator[tuple[str, str]]:
    """What is worth a line of its own; what is not there is left out."""
    found, now_ms = seen.execution, seen.now_ms
    facts = {
        "task": found.kind,
        "state": found.public_state,
        "why": seen.explanation.sentence,
        "lane": found.lane,
        "priority": str(found.priority) if found.priority else "",
        "created": f"{clock(found.created_ms)} ({ago(found.created_ms, now_ms)})",
        "started": clock(found.started_ms),
        "ended": clock(found.ended_ms),
        "deadline": clock(found.deadline_ms),
        "progress": _progress(found),
        "outcome": found.outcome_detail,
        "tags": pairs(found.tags),
    }
    return ((name, text) for name, text in facts.items() if text)


def _progress(found: Snapshot) -> str:
    percent = "" if found.progress_pct is None else f"{found.progress_pct} %"
    return f"{percent} {found.progress_message or ''}".strip()


def _attempt_row(each: AttemptRecord) -> Sequence[str]:
    why = each.failure.headline if each.failure else each.reason
    spent = took(each.started_ms, each.ended_ms)
    return (
        str(each.attempt),
        each.kind,
        each.outcome,
        each.worker,
        clock(each.started_ms),
        spent,
        why,
    )


def _print_failure(attempt: AttemptRecord) -> None:
    if attempt.failure is not None and attempt.failure.traceback:
        print(f"traceback of attempt {attempt.attempt}:")
        for line in attempt.failure.traceback.splitlines():
            print(f"  {one_line(line)}")
        print()


def _print_lines(attempt: AttemptRecord) -> None:
    if attempt.log:
        print(f"log of attempt {attempt.attempt}:")
        for line in attempt.log:
            print(f"  {clock(line.at_ms)} {line.level.lower()} {one_line(line.message)}")
        print()


def _event_row(event: Event) -> Sequence[str]:
    attempt = "" if event.attempt < 0 else str(event.attempt)
    return (clock(event.at_ms), event.kind, event.state, attempt, pairs(event.detail))
