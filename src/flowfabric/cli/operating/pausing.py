"""`ff pause`, `ff resume` and `ff lanes`: work that is held back for a while."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from flowfabric.cli.operating.opening import with_app
from flowfabric.cli.operating.texts import span
from flowfabric.cli.stores import NamespaceOption, StoreOption
from flowfabric.cli.terminal import console_for, print_json, table_of
from flowfabric.errors import InvalidInput

if TYPE_CHECKING:
    from flowfabric.app import App
    from flowfabric.core.states import LaneState
    from flowfabric.engine.lane_reading import LaneRecord

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Executions.")]
LaneNames = Annotated[
    list[str] | None, typer.Option("--lane", help="A lane as a whole; may be repeated.")
]
Reason = Annotated[str, typer.Option(help="Why, shown by `ff explain`.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on one line.")]


def pause(
    ids: Ids = None, *, store: StoreOption, lane: LaneNames = None, reason: Reason = ""
) -> None:
    """Keep executions from starting, or a lane from handing out work, until `ff resume`.

    What runs goes on. A paused lane still takes new work.

    \b
    Examples:
      ff pause 17-018f0c2e-7b1a-7c3d-8e4f-5a6b7c8d9e0f --reason "ask legal first"
      ff pause --lane mail
    """
    from flowfabric.core.states import LaneState

    async def work(app: App) -> None:
        for id in ids or []:
            print(f"{id} is {await app.handle(id).pause(reason)}, paused")
        await _set_lanes(app, lane or [], LaneState.PAUSED)

    _require_some("pause", ids, lane)
    with_app(store, work)


def resume(ids: Ids = None, *, store: StoreOption, lane: LaneNames = None) -> None:
    """Let paused executions start again, or a lane hand out work again.

    \b
    Examples:
      ff resume 17-018f0c2e-7b1a-7c3d-8e4f-5a6b7c8d9e0f
      ff resume --lane mail
    """
    from flowfabric.core.states import LaneState

    async def work(app: App) -> None:
        for id in ids or []:
            print(f"{id} is {await app.handle(id).resume()}")
        await _set_lanes(app, lane or [], LaneState.ACTIVE)

    _require_some("resume", ids, lane)
    with_app(store, work)


def lanes(*, store: StoreOption, namespace: NamespaceOption, json: Json = False) -> None:
    """List the lanes: their states, how much is ready in each, and how old the oldest of it is.

    \b
    Examples:
      ff lanes
      ff lanes --store postgresql://me@db/app --json
    """

    async def look(app: App) -> tuple[list[LaneRecord], int]:
        return await app.lanes(), app.engine.clock.now_ms()

    found, now_ms = with_app(store, look, namespace=namespace)
    if json:
        print_json({"now_ms": now_ms, "lanes": found})
        return
    rows = [
        (
            each.name,
            each.state,
            f"{each.ready:,}{'+' if each.is_more else ''}",
            "" if each.oldest_ms is None else span(now_ms - each.oldest_ms),
        )
        for each in found
    ]
    console_for(sys.stdout).print(table_of(("lane", "state", "ready", "oldest"), rows))


async def _set_lanes(app: App, names: list[str], state: LaneState) -> None:
    for name in names:
        await app.engine.set_lane(name, state)
        print(f"lane {name} is {state}")


def _require_some(verb: str, ids: list[str] | None, lanes: list[str] | None) -> None:
    if not ids and not lanes:
        raise InvalidInput(
            "no id and no lane",
            field="ids",
            hint=f"use `ff {verb} ID` or `ff {verb} --lane NAME`",
        )
