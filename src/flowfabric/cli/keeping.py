"""`ff sweep`, `ff doctor` and `ff workers`: what engines do, once and by hand; what is wrong; who
works.

All work on a store that exists and make none.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from flowfabric.cli.exits import NOT_AS_EXPECTED
from flowfabric.cli.operating.opening import with_app
from flowfabric.cli.stores import NamespaceOption, StoreOption
from flowfabric.cli.terminal import console_for, print_json, table_of
from flowfabric.printing import one_line, public_url

if TYPE_CHECKING:
    from flowfabric.core.registry import WorkerRecord
    from flowfabric.engine.diagnosis import Diagnosis
    from flowfabric.engine.engine import Engine

R = TypeVar("R")

_Deep = Annotated[
    bool, typer.Option("--deep", help="Also read finished work, payloads, attempts and pages.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on one line.")]


def sweep(*, store: StoreOption, json: _Json = False) -> None:
    """Run every background duty once and print what each of them repaired.

    Running engines do this all the time; use the command for a store without one. It handles due
    timers, dispatches flows with open work, then runs every sweeper. If a duty fails, the others
    still run, and the exit code is 1.

    \b
    Examples:
      ff sweep --store sqlite:///flows.db
      ff sweep --store postgresql://me@db/app --json
    """
    from flowfabric.engine.round_by_hand import run

    repaired = _with_engine(store, run)
    if json:
        print_json({"duties": repaired})
    else:
        rows = [(each.name, f"{each.processed:,}", f"{each.errors:,}") for each in repaired]
        _print_table((public_url(store), "repaired", "errors"), rows)
    for each in repaired:
        if each.problem:
            print(f"{each.name} failed: {one_line(each.problem)}", file=sys.stderr)
    if any(each.errors for each in repaired):
        raise typer.Exit(NOT_AS_EXPECTED)


def doctor(*, store: StoreOption, deep: _Deep = False, json: _Json = False) -> None:
    """Examine a store and list its problems; nothing is repaired.

    Every unfinished execution must be claimable, held by a live lease, or name what will wake it.
    Timers, flows and sweepers must be in time, and ready work must have a worker. Nothing may
    fail repeatedly, be parked or unreadable. The exit code is 1 if there is a problem. What only
    slows the store down (on Postgres: old snapshots) is a warning.

    \b
    Examples:
      ff doctor --store sqlite:///flows.db
      ff doctor --store valkey://localhost --json
      ff doctor --store sqlite:///flows.db --deep
    """

    async def examine(engine: Engine) -> Diagnosis:
        from flowfabric.engine.doctor import Doctor

        return await Doctor(engine.store, engine.clock).examine(deep=deep)

    found = _with_engine(store, examine)
    if json:
        print_json({"is_well": found.is_well, **_fields(found)})
    else:
        _tell(found, public_url(store))
    if not found.is_well:
        raise typer.Exit(NOT_AS_EXPECTED)


def workers(*, store: StoreOption, namespace: NamespaceOption, json: _Json = False) -> None:
    """List the live workers of a namespace: where they run, what they serve, how busy they are.

    A worker registers itself and renews its entry every ten seconds; one that was killed
    disappears from the list half a minute later.

    \b
    Examples:
      ff workers --store sqlite:///flows.db
      ff workers --store postgresql://me@db/app --json
    """

    async def look(engine: Engine) -> tuple[list[WorkerRecord], int]:
        return await engine.registry.live(namespace), engine.clock.now_ms()

    found, now_ms = _with_engine(store, look)
    if json:
        print_json({"workers": found})
        return
    rows = [
        (
            each.name,
            f"{each.host} {each.pid}",
            each.version,
            f"{each.busy} of {each.slots}",
            ", ".join(each.lanes),
            ", ".join(each.tasks),
            f"{max(now_ms - each.seen_ms, 0) // 1000} s ago",
        )
        for each in found
    ]
    _print_table(("worker", "host and pid", "version", "busy", "lanes", "tasks", "seen"), rows)


def _with_engine(store: str, work: Callable[[Engine], Awaitable[R]]) -> R:
    return with_app(store, lambda app: work(app.engine))


def _fields(found: Diagnosis) -> dict[str, object]:
    import msgspec

    return msgspec.structs.asdict(found)


def _tell(found: Diagnosis, title: str) -> None:
    rows = [(each.kind.value, each.subject, each.sentence) for each in found.findings]
    if rows:
        _print_table((title, "what", "why"), rows)
    duties = [
        (each.name, f"{each.lag_ms:,} ms", f"{each.processed:,}", f"{each.errors:,}")
        for each in found.duties
    ]
    if duties:
        _print_table(("duty", "late by", "repaired", "errors"), duties)
    looked = f"{found.executions:,} unfinished executions, {found.flows:,} of their flows"
    late = f"timers late by {found.timers_lag_ms:,} ms, dispatch by {found.dispatch_lag_ms:,} ms"
    print(f"examined {looked}; {late}")
    print(_verdict(found))


def _verdict(found: Diagnosis) -> str:
    """`all is well`, or how many warnings and problems there are."""
    counts = [(found.warnings, "warning"), (found.problems, "problem")]
    told = [f"{count:,} {word}{'s' if count > 1 else ''}" for count, word in counts if count]
    return "; ".join(told if found.problems else ["all is well", *told])


def _print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    console_for(sys.stdout).print(table_of(titles, rows))
