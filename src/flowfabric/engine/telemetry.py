"""Counters of this process, by name and label. What reads them comes later; what counts is here."""

from __future__ import annotations

from collections import Counter

GROUP_POLICY = "ff_edge_group_policy_total"
SIBLINGS_DISPATCHED = "ff_sibling_cancel_dispatched_total"
SIBLINGS_DISPOSITION = "ff_sibling_cancel_disposition_total"
SIBLINGS_RECONCILED = "ff_sibling_cancel_reconcile_total"
ROUNDS = "ff_dispatch_rounds_total"
LINES_DONE = "ff_dispatch_lines_total"
CONFLICTS = "ff_dispatch_conflicts_total"
FAILURES = "ff_dispatch_failures_total"
TIMERS_DONE = "ff_timers_done_total"
PURGED = "ff_retention_purged_total"
TIMERS_FAILED = "ff_timers_failed_total"
UNREADABLE = "ff_dispatch_unreadable_total"


class Telemetry:
    """Only counters; nobody has to hand one in."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def count(self, name: str, label: str = "", by: int = 1) -> None:
        if by:
            self._counts[name, label] += by

    def value(self, name: str, label: str = "") -> int:
        return self._counts[name, label]

    def labels(self, name: str) -> dict[str, int]:
        """Every label of a counter that has moved, with how far."""
        return {label: count for (known, label), count in self._counts.items() if known == name}
