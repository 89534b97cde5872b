"""How figures are printed: one JSON object on one line, or a small table for people."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from flowfabric.cli.bench.machine import machine
from flowfabric.cli.bench.targets import Target
from flowfabric.cli.terminal import console_for
from flowfabric.printing import public_url

if TYPE_CHECKING:
    from flowfabric.cli.bench.contend import Contention
    from flowfabric.cli.bench.cycle import Figures
    from flowfabric.cli.bench.idle import Idle
    from flowfabric.cli.bench.limit import Limit

DIGITS = 4


def show_cycle(figures: Figures, target: Target, *, as_json: bool) -> None:
    if as_json:
        _print_json(figures)
        return
    trip = figures.round_trip_ms
    rows = [
        ("end to end", f"{figures.end_to_end_per_s:,.0f} /s"),
        ("enqueue", f"{figures.enqueue_per_s:,.0f} /s"),
        ("drain", f"{figures.drain_per_s:,.0f} /s"),
        ("round trip p50, p95, p99", f"{trip.p50:.2f}, {trip.p95:.2f}, {trip.p99:.2f} ms"),
        ("processor time", f"{figures.cpu_s_per_1000:.3f} s per 1,000"),
    ]
    if figures.peak_rss_mb is not None:
        rows.append(("peak memory", f"{figures.peak_rss_mb:,.0f} MB"))
    if figures.share_of_limit is not None:
        rows.append(("share of the raw client", f"{figures.share_of_limit:.0%}"))
    if isinstance(figures.ratio_to_empty, float):
        rows.append(("cost against an empty store", f"{figures.ratio_to_empty:.2f} times"))
    _print_table("cycle", rows, target)


def show_limit(figures: Limit, target: Target, *, as_json: bool) -> None:
    if as_json:
        _print_json(figures)
    else:
        _print_table("limit", [("raw client", f"{figures.limit_per_s:,.0f} /s")], target)


def show_idle(figures: Idle, target: Target, *, as_json: bool) -> None:
    if as_json:
        _print_json(figures)
        return
    rows = [
        ("round trips", f"{figures.round_trips_per_s:.2f} /s"),
        ("processor time", f"{figures.cpu_percent:.2f} % of a core"),
    ]
    _print_table("idle", rows, target)


def show_contention(figures: Contention, target: Target, *, as_json: bool) -> None:
    if as_json:
        _print_json(figures)
        return
    rows = [
        ("verbs", f"{figures.verbs_per_s:,.0f} /s"),
        ("conflicts", f"{figures.conflicts:,}"),
        ("lost", f"{figures.lost:,}"),
        ("double leases", f"{figures.double_leases:,}"),
    ]
    _print_table("contend", rows, target)


def show_figures(title: str, figures: msgspec.Struct, target: Target, *, as_json: bool) -> None:
    """Whatever the figures are, by their own names."""
    if as_json:
        _print_json(figures)
        return
    found: dict[str, object] = msgspec.to_builtins(figures)
    _print_table(title, [(name, _told(value)) for name, value in found.items()], target)


def _told(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_told(inner)}" for name, inner in value.items())
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def _print_json(figures: msgspec.Struct) -> None:
    print(msgspec.json.encode(_rounded(msgspec.to_builtins(figures))).decode())


def _rounded(value: object) -> object:
    """Four digits that mean something; the rest is noise."""
    match value:
        case dict():
            return {name: _rounded(inner) for name, inner in value.items()}
        case float():
            return float(f"{value:.{DIGITS}g}")
        case _:
            return value


def _print_table(title: str, rows: Sequence[tuple[str, str]], target: Target) -> None:
    from rich import box
    from rich.table import Table

    table = Table(title, public_url(target.url), box=box.SIMPLE_HEAD, pad_edge=False)
    table.columns[1].justify = "right"
    for row in rows:
        table.add_row(*row)
    console = console_for(sys.stdout)
    console.print(table)
    console.print(machine(), style="dim", soft_wrap=True)
