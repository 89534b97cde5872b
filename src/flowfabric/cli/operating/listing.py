"""`ff ps`: executions as a table, once or again and again."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from flowfabric.cli.exits import INTERRUPTED
from flowfabric.cli.operating.filters import (
    Filters,
    FlowOption,
    LaneOption,
    SinceOption,
    StateOption,
    TagOption,
    TaskOption,
)
from flowfabric.cli.operating.opening import with_app
from flowfabric.cli.stores import NamespaceOption, StoreOption
from flowfabric.cli.terminal import console_for, is_terminal, print_json

if TYPE_CHECKING:
    from flowfabric.app import App

WATCH_SECONDS = 1.0

_Limit = Annotated[int, typer.Option(min=1, help="How many to list at most, newest first.")]
_Watch = Annotated[bool, typer.Option("--watch", help="List them again every second.")]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on one line.")]


def ps(
    *,
    store: StoreOption,
    namespace: NamespaceOption,
    state: StateOption = "",
    task: TaskOption = "",
    lane: LaneOption = "",
    tag: TagOption = None,
    since: SinceOption = "",
    flow: FlowOption = "",
    limit: _Limit = 50,
    watch: _Watch = False,
    json: _Json = False,
) -> None:
    """List executions: those that have not ended, or those that the options ask for.

    \b
    Examples:
      ff ps
      ff ps --state failed,expired --since 1h
      ff ps --task charge --lane mail --tag shop.tenant=acme --json
      ff ps --watch
    """
    filters = Filters(state, task, lane, tag, since, flow)
    try:
        with_app(
            store,
            lambda app: _watch(app, filters, limit) if watch else _once(app, filters, limit, json),
            namespace=namespace,
        )
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


async def _once(app: App, filters: Filters, limit: int, as_json: bool) -> None:
    from flowfabric.cli.operating.listing_view import draw, read

    seen = await read(app, filters, limit)
    if as_json:
        print_json(seen)
    else:
        console_for(sys.stdout).print(draw(seen))


async def _watch(app: App, filters: Filters, limit: int) -> None:
    """In a terminal the table stays in place; elsewhere each look is printed below the last."""
    from rich.live import Live

    from flowfabric.cli.operating.listing_view import draw, read

    console = console_for(sys.stdout)
    room = max(console.height - 6, 1) if is_terminal(sys.stdout) else limit
    with Live(console=console, auto_refresh=False, screen=is_terminal(sys.stdout)) as live:
        while True:
            seen = await read(app, filters, min(limit, room))
            live.update(draw(seen), refresh=True)
            await asyncio.sleep(WATCH_SECONDS)
