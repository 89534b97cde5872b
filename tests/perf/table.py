"""The table of what each verb costs on each store, and how a difference is told."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import msgspec

from flowfabric.store.trips import Count

TABLE = Path(__file__).with_name("expected.toml")


class Cost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    round_trips: int
    statements: int


@cache
def expected() -> dict[str, dict[str, Cost]]:
    """By store, then by what is done."""
    found = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return msgspec.convert(found, type=dict[str, dict[str, Cost]])


def difference(kind: str, what: str, count: Count) -> str:
    """Empty when the table says the same; else what changed, and the line that would say so."""
    cost = expected().get(kind, {}).get(what)
    line = f"{what} = {{ round_trips = {count.round_trips}, statements = {count.statements} }}"
    if cost is None:
        return f"{TABLE.name} has no line under [{kind}]: {line}"
    if cost == Cost(*count):
        return ""
    how = "more" if count > Count(cost.round_trips, cost.statements) else "less"
    return f"{what} costs {how} on {kind} than {TABLE.name} says ({cost}); now: {line}"
