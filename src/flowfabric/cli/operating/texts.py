"""How operators see instants, spans and states."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from flowfabric.core.states import PublicState

STYLES = {
    PublicState.ACTIVE: "bold",
    PublicState.COMPLETED: "green",
    PublicState.FAILED: "red",
    PublicState.EXPIRED: "red",
    PublicState.CANCELLED: "yellow",
    PublicState.SKIPPED: "magenta",
}

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def span(ms: int) -> str:
    """In the largest unit that it fills: `3 min`, `12 s`, `250 ms`."""
    for size, unit in _UNITS:
        if ms >= size:
            return f"{ms // size} {unit}"
    return f"{max(ms, 0)} ms"


def ago(at_ms: int | None, now_ms: int) -> str:
    return "" if at_ms is None else f"{span(now_ms - at_ms)} ago"


def clock(at_ms: int | None) -> str:
    """The instant by the clock of this machine's time zone, to the millisecond."""
    if at_ms is None:
        return ""
    at = datetime.fromtimestamp(at_ms / 1000).astimezone().replace(tzinfo=None)
    return at.isoformat(sep=" ", timespec="milliseconds")


def took(started_ms: int | None, ended_ms: int | None) -> str:
    return "" if started_ms is None or ended_ms is None else span(ended_ms - started_ms)


def pairs(values: Mapping[str, object]) -> str:
    """`key=value`, without those that are empty."""
    return " ".join(f"{key}={value}" for key, value in values.items() if value != "")
