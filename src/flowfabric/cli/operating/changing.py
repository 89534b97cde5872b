"""`ff cancel`, `ff replay` and `ff purge`: executions by their ids, or all that match.

What is named by its id is changed at once. What is only described is counted first and asked about,
unless `--yes` confirms it; `--dry-run` only counts.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from flowfabric.cli.exits import NOT_AS_EXPECTED
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
from flowfabric.cli.operating.showing import is_flow
from flowfabric.cli.stores import NamespaceOption, StoreOption
from flowfabric.cli.terminal import is_terminal, print_json
from flowfabric.errors import InvalidInput
from flowfabric.printing import one_line

if TYPE_CHECKING:
    from flowfabric.app import App
    from flowfabric.client.bulk import Changed
    from flowfabric.client.finding import Found

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of executions.")]
Reason = Annotated[str, typer.Option(help="Why, kept with the execution.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count what matches.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on one line.")]


# A bulk change of so many is over before it could be watched.
AT_A_MOMENT = 500


class Where(NamedTuple):
    """The store and namespace of a command, and how it talks."""

    store: str
    namespace: str
    is_confirmed: bool
    is_dry: bool
    as_json: bool


def cancel(
    ids: Ids = None,
    *,
    store: StoreOption,
    namespace: NamespaceOption,
    state: StateOption = "",
    task: TaskOption = "",
    lane: LaneOption = "",
    tag: TagOption = None,
    since: SinceOption = "",
    flow: FlowOption = "",
    reason: Reason = "cancelled by an operator",
    yes: Yes = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Cancel executions or flows by their ids, or every execution that matches.

    \b
    Examples:
      ff cancel 17-018f0c2e-7b1a-7c3d-8e4f-5a6b7c8d9e0f
      ff cancel --task charge --state delayed --dry-run
      ff cancel --lane mail --since 1h --yes --reason "wrong template"
    """

    async def one(app: App, id: str) -> object:
        if is_flow(id):
            return await app.flow_handle(id).cancel(reason)
        return await app.handle(id).cancel(reason)

    async def many(found: Found, progress: Callable[[Changed], None]) -> Changed:
        return await found.cancel(reason, progress=progress)

    filters = Filters(state, task, lane, tag, since, flow)
    where = Where(store, namespace, yes, dry_run, json)
    _change("cancel", ids or [], filters, where, one=one, many=many)


def replay(
    ids: Ids = None,
    *,
    store: StoreOption,
    namespace: NamespaceOption,
    state: StateOption = "",
    task: TaskOption = "",
    lane: LaneOption = "",
    tag: TagOption = None,
    since: SinceOption = "",
    flow: FlowOption = "",
    reason: Reason = "replayed by an operator",
    yes: Yes = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Run executions again that have ended: by their ids, or every one that matches.

    \b
    Examples:
      ff replay 17-018f0c2e-7b1a-7c3d-8e4f-5a6b7c8d9e0f
      ff replay --state failed --task charge --since 1h
      ff replay --state failed --tag shop.tenant=acme --yes
    """

    async def one(app: App, id: str) -> object:
        return await app.handle(id).replay(reason)

    async def many(found: Found, progress: Callable[[Changed], None]) -> Changed:
        return await found.replay(reason, progress=progress)

    filters = Filters(state, task, lane, tag, since, flow)
    where = Where(store, namespace, yes, dry_run, json)
    _change("replay", ids or [], filters, where, one=one, many=many)


def purge(
    ids: Ids = None,
    *,
    store: StoreOption,
    namespace: NamespaceOption,
    state: StateOption = "",
    task: TaskOption = "",
    lane: LaneOption = "",
    tag: TagOption = None,
    since: SinceOption = "",
    yes: Yes = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Delete executions that have ended before their retention is over.

    Members of flows are deleted with their flow and are refused here; so is an execution whose
    idempotency key still counts.

    \b
    Examples:
      ff purge 17-018f0c2e-7b1a-7c3d-8e4f-5a6b7c8d9e0f
      ff purge --state completed --task resize --yes
    """

    async def one(app: App, id: str) -> object:
        from flowfabric.core.ids import parse_execution_id

        await app.handle(id).status()
        await app.engine.purge(parse_execution_id(id))
        return id

    async def many(found: Found, progress: Callable[[Changed], None]) -> Changed:
        return await found.purge(progress=progress)

    filters = Filters(state, task, lane, tag, since)
    where = Where(store, namespace, yes, dry_run, json)
    _change("purge", ids or [], filters, where, one=one, many=many)


One = Callable[["App", str], Awaitable[object]]
Many = Callable[["Found", Callable[["Changed"], None]], Awaitable["Changed"]]


def _change(
    verb: str, ids: list[str], filters: Filters, where: Where, *, one: One, many: Many
) -> None:
    if bool(ids) is not filters.is_empty:
        problem = "pass ids or conditions, not both" if ids else "no ids and no conditions"
        raise InvalidInput(
            f"{verb}: {problem}", field="ids", hint=f"use `ff {verb} ID` or `ff {verb} --task NAME`"
        )

    async def work(app: App) -> Changed:
        if ids:
            return await _each(app, ids, one)
        found = filters.find(app)
        count = await found.count()
        if where.is_dry or not (where.is_confirmed or _confirmed(verb, count)):
            _tell(f"{count:,} executions match; nothing was changed")
            raise typer.Exit(0 if where.is_dry else NOT_AS_EXPECTED)
        return await many(found, lambda so_far: _tell_progress(so_far, count))

    changed = with_app(where.store, work, namespace=where.namespace)
    if where.as_json:
        refused = {id: error.message for id, error in changed.refused.items()}
        print_json({"changed": int(changed), "refused": refused})
    else:
        print(f"{int(changed):,} changed")
        for id, error in changed.refused.items():
            print(one_line(f"{id}: {error}"), file=sys.stderr)
    if changed.refused:
        raise typer.Exit(NOT_AS_EXPECTED)


async def _each(app: App, ids: list[str], one: One) -> Changed:
    """One id alone ends in its own error, with its own exit code."""
    from flowfabric.client.bulk import Changed
    from flowfabric.errors import FlowFabricError

    done, refused = 0, {}
    for id in ids:
        try:
            await one(app, id)
            done += 1
        except FlowFabricError as error:
            if len(ids) == 1:
                raise
            refused[id] = error
    return Changed(done, refused)


def _confirmed(verb: str, count: int) -> bool:
    """Asked only where there is someone to answer."""
    if count == 0:
        return True
    if not is_terminal(sys.stderr) or not sys.stdin.isatty():
        raise InvalidInput(
            f"{verb} would change {count:,} executions", field="yes", hint="pass --yes to confirm"
        )
    return typer.confirm(f"{verb} {count:,} executions?", err=True)


def _tell_progress(so_far: Changed, count: int) -> None:
    """Of what takes one moment there is nothing to tell."""
    if count > AT_A_MOMENT:
        _tell(f"{int(so_far):,} of {count:,}")


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
