"""The app that a command is given as `module:name`."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer

from flowfabric.errors import InvalidInput

if TYPE_CHECKING:
    from flowfabric.app import App

Target = Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the app is defined.")]


def find_app(target: str) -> App:
    """The app that `module:name` leads to; the current folder is looked at first."""
    from flowfabric.app import App

    module, _, name = target.partition(":")
    if not module or not name:
        raise InvalidInput(f"expected MODULE:APP, got {target!r}", field="app", hint="try shop:app")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: object = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise InvalidInput(
            f"no module named {error.name!r}",
            field="app",
            hint="run the command in the folder of the module",
        ) from error
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App):
        raise InvalidInput(
            f"{target} is not a flowfabric.App",
            field="app",
            hint="name the variable that holds the app",
        )
    return found
