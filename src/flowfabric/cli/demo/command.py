"""`ff demo` as people type it: where it runs, how it is shown, how it ends."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from flowfabric.cli.exits import INTERRUPTED, NOT_AS_EXPECTED
from flowfabric.cli.stores import STORE_HELP
from flowfabric.cli.terminal import print_json

if TYPE_CHECKING:
    from flowfabric.cli.demo.proof import Proof

ORDERS = 30


def demo(
    *,
    store: Annotated[
        str | None,
        typer.Option(help=f"{STORE_HELP} Without it, a private SQLite file."),
    ] = None,
    orders: Annotated[
        int, typer.Option(min=5, max=200, help="How many orders to submit.")
    ] = ORDERS,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the summary as one JSON object; the rest goes to stderr."
        ),
    ] = False,
) -> None:
    """Watch durable work survive the death of a worker.

    A shop on the embedded store with two worker processes runs some fifty executions: payments
    that fail twice and are retried, reminders with a delay, one that is cancelled, and a flow,
    shown as a tree: films, three models that race for the first answer, readers of whom two must
    agree, a failed translation whose branch is skipped.

    In the middle the worker that renders the films is killed with SIGKILL, and every order is
    submitted again. At the end the store is counted; the exit code is 1 if anything is missing.
    The demo takes about twelve seconds and removes its files.

    \b
    Examples:
      ff demo
      ff demo --store sqlite:///shop.db      keep the file and look at it
      ff demo --json | python -m json.tool
    """
    from flowfabric.cli.demo.run import run

    out = sys.stderr if json else sys.stdout
    try:
        proof = run(store, orders=orders, out=out)
    except KeyboardInterrupt:
        print(
            "Stopped; the workers have ended and the temporary files are removed.", file=sys.stderr
        )
        raise typer.Exit(INTERRUPTED) from None
    _print(proof, as_json=json)
    if proof.problems:
        raise typer.Exit(NOT_AS_EXPECTED)


def _print(proof: Proof, *, as_json: bool) -> None:
    from flowfabric.cli.demo.summary import summary

    if as_json:
        print_json(proof)
    else:
        summary(proof, sys.stdout)
