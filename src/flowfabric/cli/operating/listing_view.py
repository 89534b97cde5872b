"""Executions as an operator lists them: a table of what matches."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.table import Table

from flowfabric.app import App
from flowfabric.cli.operating.filters import Filters
from flowfabric.cli.operating.texts import span
from flowfabric.cli.terminal import table_of
from flowfabric.core.states import PUBLIC, TERMINAL
from flowfabric.engine.reading import Snapshot

LIVE = ",".join(sorted({PUBLIC[state] for state in PUBLIC if state not in TERMINAL}))
TITLES = ("id", "task", "state", "lane", "age", "attempts", "what")


class SeenPage(msgspec.Struct, frozen=True, kw_only=True):
    """Executions that match, at most as many as were asked for; `total` of all that do."""

    now_ms: int
    total: int
    executions: list[Snapshot]


async def read(app: App, filters: Filters, limit: int) -> SeenPage:
    """Those that have not ended, unless a state is asked for."""
    wanted = filters if filters.state else filters._replace(state=LIVE)
    found = wanted.find(app)
    executions: list[Snapshot] = []
    async for each in found:
        executions.append(each)
        if len(executions) == limit:
            break
    is_all = len(executions) < limit
    return SeenPage(
        now_ms=app.engine.clock.now_ms(),
        total=len(executions) if is_all else await found.count(),
        executions=executions,
    )


def draw(seen: SeenPage) -> Table:
    table = table_of(TITLES, [_row(each, seen.now_ms) for each in seen.executions], whole=("id",))
    shown = len(seen.executions)
    table.caption = f"{shown:,} of {seen.total:,}" if shown < seen.total else f"{shown:,}"
    table.caption_justify = "left"
    return table


def _row(each: Snapshot, now_ms: int) -> Sequence[str]:
    return (
        each.id,
        f"{each.kind} ({each.member})" if each.member else each.kind,
        each.public_state,
        each.lane,
        span(now_ms - each.created_ms),
        str(each.total_attempt_count),
        _what(each),
    )


def _what(each: Snapshot) -> str:
    """What it does, or why it does not run, as far as the row says."""
    if each.outcome_detail:
        return each.outcome_detail
    if each.progress_pct is not None or each.progress_message:
        percent = "" if each.progress_pct is None else f"{each.progress_pct} %"
        return f"{percent} {each.progress_message or ''}".strip()
    if each.lease is not None:
        return f"on {each.lease.worker}"
    return each.blocking_detail
