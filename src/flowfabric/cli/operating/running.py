"""`ff run`: one call of a task, from the terminal."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from flowfabric.cli import event_loop
from flowfabric.cli.exits import INTERRUPTED
from flowfabric.cli.targets import Target, find_app
from flowfabric.cli.terminal import print_json
from flowfabric.errors import InvalidInput

if TYPE_CHECKING:
    from flowfabric.app import App
    from flowfabric.client.handle import Handle
    from flowfabric.task import Task

_Task = Annotated[str, typer.Argument(metavar="TASK", help="The name of the task.")]
_Arguments = Annotated[
    str,
    typer.Argument(
        metavar="[JSON]",
        help="Its arguments: an object by name, a list by place, or - to read them from stdin.",
    ),
]
_Detach = Annotated[
    bool, typer.Option("--detach", help="Only submit it and print its id; workers run it.")
]
_Here = Annotated[
    bool, typer.Option("--here", help="Run a worker in this process, even if others are alive.")
]
_Timeout = Annotated[str, typer.Option(help="Stop waiting after this span: 30s, 5m.")]
_Key = Annotated[
    str, typer.Option("--key", help="An idempotency key: the same key returns the same execution.")
]
_Lane = Annotated[str, typer.Option("--lane", help="The lane, if not that of the task.")]
_Delay = Annotated[str, typer.Option("--delay", help="Begin after this span.")]


def run(
    app: Target,
    task: _Task,
    arguments: _Arguments = "{}",
    *,
    detach: _Detach = False,
    here: _Here = False,
    timeout: _Timeout = "",
    key: _Key = "",
    lane: _Lane = "",
    delay: _Delay = "",
) -> None:
    """Run one task of an app and print its result as JSON.

    The call is submitted like any other. If a live worker serves it, that one runs it; if none
    does, a worker in this process runs until the result is there.

    \b
    Examples:
      ff run shop:app charge '{"order": {"id": 1, "amount": 9.5}}'
      ff run shop:app add '[1, 2]'
      ff run shop:app report --detach --key report-2030-01
    """
    found = find_app(app)
    wanted = found.tasks.get(task)
    if wanted is None:
        known = ", ".join(sorted(found.tasks)) or "none"
        raise InvalidInput(
            f"{app} has no task {task!r}", field="task", hint=f"known tasks: {known}"
        )
    chosen = wanted.options(idempotency_key=key or None, lane=lane or None, delay=delay or None)
    try:
        event_loop.run(
            _run(found, chosen, _parsed(arguments), detach=detach, here=here, timeout=timeout)
        )
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


async def _run(
    app: App,
    task: Task[..., object],
    arguments: tuple[list[object], dict[str, object]],
    *,
    detach: bool,
    here: bool,
    timeout: str,
) -> None:
    args, kwargs = arguments
    try:
        handle = await task.start(*args, **kwargs)
        print(handle.id, file=sys.stdout if detach else sys.stderr, flush=True)
        if not detach:
            is_here = here or await _is_unserved(app, handle)
            async with app.running() if is_here else nullcontext():
                await _print_result(app, handle, timeout)
    finally:
        await app.close()


async def _is_unserved(app: App, handle: Handle[object]) -> bool:
    """Whether no live worker would take it; then one is needed here."""
    from flowfabric.core.registry import unserved

    status = await handle.status()
    if not unserved(status.lane, status.kind, await app.workers()):
        return False
    print("no live worker serves it; running it in this process", file=sys.stderr, flush=True)
    return True


async def _print_result(app: App, handle: Handle[object], timeout: str) -> None:
    """As it is stored: JSON, whatever types the task gave it."""
    import msgspec

    from flowfabric.core.ids import parse_execution_id

    await handle.result(timeout or None)
    body = await app.engine.read.result(parse_execution_id(handle.id))
    print_json(None if body is None else msgspec.json.decode(body))


def _parsed(text: str) -> tuple[list[object], dict[str, object]]:
    import msgspec

    try:
        given: object = msgspec.json.decode(sys.stdin.read() if text == "-" else text)
    except msgspec.DecodeError as error:
        raise InvalidInput(
            f"the arguments are not JSON: {error}",
            field="arguments",
            hint="""pass an object or a list, as in '{"a": 1}' or '[1]'""",
        ) from None
    if isinstance(given, list):
        return given, {}
    if isinstance(given, dict):
        return [], given
    raise InvalidInput(
        f"the arguments are {type(given).__name__}",
        field="arguments",
        hint="""pass an object or a list, as in '{"a": 1}' or '[1]'""",
    )
