"""`ff show` and `ff explain`: one execution or one flow, with everything that is known of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from flowfabric.cli.operating.opening import with_app
from flowfabric.cli.stores import StoreOption
from flowfabric.cli.terminal import print_json
from flowfabric.printing import one_line

if TYPE_CHECKING:
    from flowfabric.app import App
    from flowfabric.core.explain import Explanation

Id = Annotated[str, typer.Argument(metavar="ID", help="An execution, or a flow.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on one line.")]


def show(id: Id, *, store: StoreOption, json: Json = False) -> None:
    """Show an execution with its attempts, tracebacks, log lines and events; or a flow with its
    members.

    \b
    Examples:
      ff show 17-018f0c2e-7b1a-7c3d-8e4f-5a6b7c8d9e0f
      ff show 018f0c2e-7b1a-7c3d-8e4f-5a6b7c8d9e0f --store postgresql://me@db/app
      ff show 17-018f0c2e-7b1a-7c3d-8e4f-5a6b7c8d9e0f --json
    """
    from flowfabric.cli.operating import execution_view, flow_view

    if is_flow(id):
        flow = with_app(store, lambda app: flow_view.read(app, id))
        print_json(flow) if json else flow_view.show(flow)
    else:
        seen = with_app(store, lambda app: execution_view.read(app, id))
        print_json(seen) if json else execution_view.show(seen)


def explain(id: Id, *, store: StoreOption, json: Json = False) -> None:
    """Say in one sentence why an execution is not running, or what it does.

    \b
    Examples:
      ff explain 17-018f0c2e-7b1a-7c3d-8e4f-5a6b7c8d9e0f
      ff explain 17-018f0c2e-7b1a-7c3d-8e4f-5a6b7c8d9e0f --json
    """

    async def ask(app: App) -> Explanation:
        from flowfabric.core.ids import parse_execution_id

        return await app.engine.read.explain(parse_execution_id(id))

    found = with_app(store, ask)
    print_json(found) if json else print(one_line(found.sentence))


def is_flow(id: str) -> bool:
    """Whether the text is a flow's id: a UUID alone, without a partition."""
    from flowfabric.core.ids import parse_flow_id
    from flowfabric.errors import InvalidInput

    try:
        parse_flow_id(id)
    except InvalidInput:
        return False
    return True
