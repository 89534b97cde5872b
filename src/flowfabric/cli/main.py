"""The command `flowfabric`, `ff` for short: options that every command has, and the way out.

A command is a function that imports what it needs when it runs, so that `ff --help` stays quick.
Errors of the tree become one sentence and an exit code here; commands just let them pass.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from flowfabric import __version__
from flowfabric.cli.bench.command import bench
from flowfabric.cli.db import db
from flowfabric.cli.demo.command import demo
from flowfabric.cli.exits import EXITS_TEXT, exit_code, known_error, sentence
from flowfabric.cli.keeping import doctor, sweep, workers
from flowfabric.cli.logs import LogFormat, LogLevel, configure
from flowfabric.cli.operating.changing import cancel, purge, replay
from flowfabric.cli.operating.listing import ps
from flowfabric.cli.operating.pausing import lanes, pause, resume
from flowfabric.cli.operating.running import run
from flowfabric.cli.operating.showing import explain, show
from flowfabric.cli.operating.tailing import tail
from flowfabric.cli.worker import worker

HELP = """FlowFabric: work that survives crashes, in Python.

\b
Examples:
  ff demo                            kill a worker and see its work finished by another
  ff worker shop:app                 run the tasks of an app
  ff run shop:app add '[1, 2]'       run one task and print its result
  ff ps --watch                      list unfinished work
  ff show ID                         attempts, tracebacks, events, or a flow as a tree
  ff db size                         rows and space of a store
  ff doctor                          the problems of a store, if any
  ff --log-level info --log-format json demo

`flowfabric`, `ff` and `python -m flowfabric` are the same command. `ff bench --help` lists the
benches that measure this machine.
"""

# Help texts and messages are plain: with a markup mode, a name in brackets would be read as markup.
app = typer.Typer(
    help=HELP,
    epilog=EXITS_TEXT,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (
    demo,
    worker,
    run,
    ps,
    show,
    explain,
    tail,
    cancel,
    replay,
    pause,
    resume,
    purge,
    lanes,
    workers,
    doctor,
    sweep,
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(bench, hidden=True)
app.add_typer(db)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"flowfabric {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    log_level: Annotated[
        LogLevel, typer.Option(help="The level of the log on standard error.")
    ] = LogLevel.WARNING,
    log_format: Annotated[
        LogFormat, typer.Option(help="Lines for people, or one JSON object per line.")
    ] = LogFormat.TEXT,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
) -> None:
    del version
    configure(log_level, log_format)


def main() -> None:
    """Run the command line and leave with its exit code."""
    try:
        app()
    except BaseException as error:
        known = known_error(error)
        if known is None:
            raise
        print(f"Error: {sentence(known)}", file=sys.stderr)
        sys.exit(exit_code(type(known)))
