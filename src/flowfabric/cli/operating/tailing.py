"""`ff tail`: what happens in a store, line by line, as it happens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from flowfabric.cli.exits import INTERRUPTED
from flowfabric.cli.operating.opening import with_app
from flowfabric.cli.operating.texts import clock, pairs
from flowfabric.cli.stores import StoreOption
from flowfabric.cli.terminal import print_json
from flowfabric.printing import one_line

if TYPE_CHECKING:
    from flowfabric.app import App
    from flowfabric.core.model import Event
    from flowfabric.core.states import State

LOOK_SECONDS = 0.5
PAGE = 1_000

_Id = Annotated[str, typer.Argument(metavar="[ID]", help="Only this execution, until it ends.")]
_Past = Annotated[bool, typer.Option("--past", help="Print what has happened so far and stop.")]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


def tail(id: _Id = "", *, store: StoreOption, past: _Past = False, json: _Json = False) -> None:
    """Follow what happens: submits, claims, ends, cancels, as they are written.

    Without an ID it begins now and shows everything, until Ctrl-C. Of one execution it shows all
    events from its first one and stops when it has ended.

    \b
    Examples:
      ff tail
      ff tail 17-018f0c2e-7b1a-7c3d-8e4f-5a6b7c8d9e0f
      ff tail --past --json
    """
    try:
        with_app(store, lambda app: _follow(app, id, is_past=past, as_json=json))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


async def _follow(app: App, id: str, *, is_past: bool, as_json: bool) -> None:
    from flowfabric.client.public_ids import shown
    from flowfabric.core.ids import parse_execution_id
    from flowfabric.core.model import Feed
    from flowfabric.core.states import TERMINAL

    execution = parse_execution_id(id) if id else None
    feed = Feed(execution=execution, limit=PAGE)
    if execution is not None:
        # Refused at once if there is none.
        await app.engine.read.load(execution)
    elif not is_past:
        newest = await app.engine.read.events(Feed(newest=True))
        feed = Feed(after=newest[-1].cursor if newest else "", limit=PAGE)
    written = asyncio.Event()
    app.engine.hints.subscribe(lambda _: written.set())
    while True:
        written.clear()
        events = await app.engine.read.events(feed)
        for event in events:
            _print(shown(event), as_json=as_json)
        if events:
            feed = Feed(execution=execution, after=events[-1].cursor, limit=PAGE)
        if len(events) == PAGE:
            continue
        has_ended = execution is not None and _last_state(events) in TERMINAL
        if is_past or has_ended:
            return
        await _until(written)


def _last_state(events: list[Event]) -> State | None:
    return events[-1].state if events else None


async def _until(written: asyncio.Event) -> None:
    """A wake-up, or a while: hints of other processes may be lost."""
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            await written.wait()
    except TimeoutError:
        return


def _print(event: Event, *, as_json: bool) -> None:
    if as_json:
        print_json(event)
        return
    detail = pairs(event.detail)
    print(
        one_line(f"{clock(event.at_ms)} {event.execution} {event.kind} {detail}".rstrip()),
        flush=True,
    )
