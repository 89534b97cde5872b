"""`ff worker`: worker processes for the app of a module."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from flowfabric.cli.event_loop import run
from flowfabric.cli.targets import Target, find_app
from flowfabric.loggers import logger_of

logger = logger_of("flowfabric.cli")

_Lanes = Annotated[
    str,
    typer.Option(help="Lanes to serve, separated by commas; by default the lanes of the tasks."),
]
_Concurrency = Annotated[
    int | None,
    typer.Option(min=1, help="Attempts that a process runs at once; by default as the app says."),
]
_Processes = Annotated[
    int, typer.Option(min=1, help="Worker processes; one that ends by itself is replaced.")
]
_Reload = Annotated[
    bool,
    typer.Option("--reload", help="Start again when a Python file below this folder changes."),
]
_Supervised = Annotated[bool, typer.Option("--supervised", hidden=True)]


def worker(
    app: Target,
    context: typer.Context,
    *,
    lanes: _Lanes = "",
    concurrency: _Concurrency = None,
    processes: _Processes = 1,
    reload: _Reload = False,
    supervised: _Supervised = False,
) -> None:
    """Run the tasks of an app until SIGTERM or SIGINT, then drain.

    The current folder is searched for the module first. With `flowfabric[fast]` installed the
        worker runs in uvloop. A second signal ends it without waiting for running attempts.

        \b
        Examples:
          ff worker shop:app
          ff worker shop.tasks:app --lanes mail,reports --concurrency 20
          ff worker shop:app --processes 4
          ff worker shop:app --reload
    """
    if processes > 1 or reload:
        options = [] if concurrency is None else ["--concurrency", str(concurrency)]
        command = [app, "--supervised", "--lanes", lanes, *options]
        _supervise(context, command, processes=processes, reload=reload)
    found = find_app(app)
    if supervised:
        from flowfabric.cli.worker_processes import end_with_input

        end_with_input()
    served = [lane for lane in lanes.split(",") if lane]
    run(found.work(lanes=served, concurrency=concurrency))


def _supervise(context: typer.Context, command: list[str], *, processes: int, reload: bool) -> None:
    from flowfabric.cli.worker_processes import WorkerProcesses

    if not reload:
        # What is wrong with the app is said once, before anything is started.
        find_app(command[0])
    root = context.find_root().params
    logs = ["--log-level", root["log_level"].value, "--log-format", root["log_format"].value]

    async def keep() -> int:
        folder = Path.cwd() if reload else None
        return await WorkerProcesses([*logs, "worker", *command], processes, reload=folder).run()

    logger.info("starting %s worker processes", processes)
    raise typer.Exit(asyncio.run(keep()))
