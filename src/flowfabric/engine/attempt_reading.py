"""What attempts left beside their heads: exceptions and log lines."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flowfabric.core.attempt_record import (
    FAILURES,
    LINES,
    AttemptRecord,
    attempt_key,
    records_of,
)
from flowfabric.core.entries import PAGE, Kept, Topic
from flowfabric.core.failures import FailureReport, decode_report
from flowfabric.core.model import Attempt, Execution
from flowfabric.store.protocol import Store


async def failure_of(store: Store, head: Execution) -> FailureReport | None:
    """The exception that ended the last attempt, if one did."""
    key = attempt_key(head.attempt)
    before = attempt_key(head.attempt - 1) if head.attempt else ""
    (found,) = await store.entries([Topic(head.id, FAILURES, before, 1)])
    last = found[0] if found and found[0].key == key else None
    return None if last is None else decode_report(last.body, last.problem)


async def attempt_records(
    store: Store, head: Execution, attempts: Sequence[Attempt]
) -> list[AttemptRecord]:
    """Every attempt of every run: a replay goes on counting, and keeps what was before."""
    runs = range(head.generation + 1)
    failures = await _all(store, [Topic(head.id, FAILURES, generation=run) for run in runs])
    lines = await _all(store, [Topic(head.id, LINES, generation=run) for run in runs])
    return records_of(attempts, failures, lines)


async def _all(store: Store, asks: Sequence[Topic]) -> list[Kept]:
    found: list[Kept] = []
    while asks:
        pages = await store.entries(asks)
        found += [entry for page in pages for entry in page]
        asks = [
            msgspec.structs.replace(ask, after=page[-1].key)
            for ask, page in zip(asks, pages, strict=True)
            if len(page) == PAGE
        ]
    return found
