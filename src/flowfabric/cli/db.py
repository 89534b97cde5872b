"""`ff db`: keeping a store. What each command does is the store's own; here it is asked and told.

`--store` is the database of the default app unless it is said otherwise. Passwords are never
printed.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from flowfabric.cli import event_loop
from flowfabric.cli.stores import StoreOption, named_store
from flowfabric.cli.terminal import console_for, print_json, table_of
from flowfabric.errors import InvalidInput, Refused
from flowfabric.printing import public_url

if TYPE_CHECKING:
    from flowfabric.store import Store
    from flowfabric.store.upkeep import Size, Upkeep

HELP = """Maintain a store: bring it up to date, copy it, measure it, remove it.

\b
Examples:
  ff db size                                         rows and space of the project's store
  ff db migrate --store postgresql://me@db/app --plan
  ff db backup copy.db
"""

R = TypeVar("R")


db = typer.Typer(name="db", help=HELP, no_args_is_help=True, rich_markup_mode=None)


@db.command()
def migrate(
    *,
    store: StoreOption,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print what would be done; change nothing.")
    ] = False,
) -> None:
    """Make a store ready for this version, or print what is missing.

    Every process does this when it starts; as a command it can be done before a deployment, by an
    account that may create tables. Repeating it is harmless.

    \b
    Examples:
      ff db migrate --store postgresql://owner@db/app
      ff db migrate --store sqlite:///flows.db --plan
    """

    async def work(opened: Store, keeping: Upkeep) -> list[str]:
        names = await keeping.unmigrated()
        if not plan:
            await opened.migrate()
        return names

    names = _with_store(store, work)
    if not names:
        print("up to date")
    for name in names:
        print(f"{'would run' if plan else 'ran'} {name}")


@db.command()
def backup(
    target: Annotated[Path, typer.Argument(help="Where the copy goes; must not exist.")],
    *,
    store: StoreOption,
) -> None:
    """Copy a SQLite store as of one moment, while other processes write.

    The copy is complete or not made, and no file is overwritten. For servers use their own tools:
    pg_dump or a base backup for Postgres; the append-only file or a replica for Valkey.

    \b
    Examples:
      ff db backup copy.db
      ff db backup /backups/monday.db --store sqlite:///flows.db
    """
    from flowfabric.store.upkeep import Copyable

    async def work(opened: Store, keeping: Upkeep) -> None:
        del keeping
        if not isinstance(opened, Copyable):
            raise InvalidInput(
                f"{public_url(store)} is on a server, and only SQLite files can be copied",
                field="store",
                hint="use the tools of the server, such as pg_dump",
            )
        await opened.backup(target)

    _with_store(store, work)
    print(f"copied to {target}, {_amount(target.stat().st_size)}")


@db.command()
def size(
    *,
    store: StoreOption,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on one line.")
    ] = False,
) -> None:
    """Print how many rows each part of a store holds and how much space it takes.

    \b
    Examples:
      ff db size --store sqlite:///flows.db
      ff db size --store postgresql://me@db/app --json
    """
    sizes = _with_store(store, lambda _, keeping: keeping.sizes())
    if json:
        _print_json(sizes)
    elif not sizes:
        print("the store is empty")
    else:
        _print_table(sizes, public_url(store))


@db.command()
def drop(
    *,
    store: StoreOption,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm: remove the store.")] = False,
) -> None:
    """Remove a store and all work in it. This cannot be undone.

    Without --yes nothing is removed; the command prints what it would remove. A file that a
    process has open is not removed. The tables, keys and files of other programs are never touched.

    \b
    Examples:
      ff db drop --store sqlite:///flows.db            prints what it would remove
      ff db drop --store sqlite:///flows.db --yes
    """

    async def work(opened: Store, keeping: Upkeep) -> list[Size]:
        del opened
        sizes = await keeping.sizes()
        if sizes and not yes:
            raise InvalidInput(
                f"this would remove {_total(sizes)} of {public_url(store)} for good",
                field="yes",
                hint="pass --yes to confirm",
            )
        await keeping.drop()
        return sizes

    sizes = _with_store(store, work)
    print(f"removed {_total(sizes)}" if sizes else "the store is empty; nothing was removed")


def _with_store(store: str, work: Callable[[Store, Upkeep], Awaitable[R]]) -> R:
    """Open it, do one thing, let go of it."""
    from flowfabric.store import open_store
    from flowfabric.store.upkeep import Upkeep

    async def run(url: str) -> R:
        opened = open_store(url)
        if not isinstance(opened, Upkeep):
            raise Refused(f"{public_url(url)} has no upkeep commands")
        try:
            return await work(opened, opened)
        finally:
            await opened.close()

    with named_store(store) as url:
        return event_loop.run(run(url))


def _print_json(sizes: list[Size]) -> None:
    print_json({"parts": sizes, "bytes": sum(part.bytes for part in sizes)})


def _print_table(sizes: list[Size], title: str) -> None:
    rows = [(part.name, f"{part.rows:,}", _amount(part.bytes)) for part in sizes]
    table = table_of((title, "rows", "size"), rows)
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_section()
    table.add_row("all", f"{_rows(sizes):,}", _amount(sum(part.bytes for part in sizes)))
    console_for(sys.stdout).print(table)


def _total(sizes: list[Size]) -> str:
    return f"{_rows(sizes):,} rows, {_amount(sum(part.bytes for part in sizes))},"


def _rows(sizes: list[Size]) -> int:
    return sum(part.rows for part in sizes)


def _amount(count: int) -> str:
    if count < 1_000:
        return f"{count} B"
    amount, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 1_000:
            break
        amount, unit = amount / 1_000, larger
    return f"{amount:,.1f} {unit}"
