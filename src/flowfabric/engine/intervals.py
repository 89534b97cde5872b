"""How often each sweeper runs by default.

Timers and dispatch have no interval: they wake when something comes, with a net of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta

from flowfabric.core.duration import duration_ms
from flowfabric.errors import InvalidInput

SECONDS: dict[str, float] = {
    "index_reconciler": 45.0,
    "retention_trimmer": 60.0,
    "dependency_reconciler": 15.0,
    "flow_projector": 15.0,
    "cancel_reconciler": 15.0,
    "edge_cancel_reconciler": 10.0,
}

Intervals = Mapping[str, str | int | float | timedelta]


def seconds_of(given: Intervals, known: Collection[str]) -> dict[str, float]:
    """The intervals of these duties, some of them as given; 0 switches one off."""
    for name in given:
        if name not in known:
            raise InvalidInput(
                f"{name!r} is not a sweeper with an interval",
                field="intervals",
                hint=f"use one of {', '.join(sorted(known))}",
            )
    chosen = {name: duration_ms(span, f"intervals.{name}") / 1000 for name, span in given.items()}
    return {name: chosen.get(name, SECONDS[name]) for name in known}
