"""How a child process finds the function of a task: by the module that defines it.

Nothing of a function is sent, only where it is. A script is imported as `multiprocessing` does it,
under another name than `__main__`, so that what stands under `if __name__ == "__main__":` does not
run again. What a new process cannot import is refused when the task is defined, or when its worker
starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

import msgspec

from flowfabric.errors import InvalidInput, Refused

_MAIN = "__main__"
_HINT = "define it at the top level of a module, with @app.task(isolate='process') above it"

_importing: list[str] = []
# The main module of the worker, when it is imported in a child.
_mains: list[ModuleType] = []


class Origin(msgspec.Struct, frozen=True):
    """Where a task is defined: the path from a module to it."""

    module: str
    qualname: str

    def find(self) -> object:
        """What is there, in this process; None for nothing."""
        found: object = import_module(self.module)
        for name in self.qualname.split("."):
            found = getattr(found, name, None)
        return found


def origin_of(task: str, function: Callable[..., object]) -> Origin:
    """Refuses what no other process can import."""
    module: object = getattr(function, "__module__", None)
    qualname: object = getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str):
        raise _unreachable(task, f"{function!r} is not a function of a module")
    if "<" in qualname:
        raise _unreachable(task, f"{qualname} is a lambda, or defined inside a function")
    if module == _MAIN and not main_place():
        raise _unreachable(task, "it is defined in a notebook or an interactive session")
    return Origin(module, qualname)


def _unreachable(task: str, why: str) -> InvalidInput:
    problem = (
        f"task {task!r} cannot run in a process of its own: {why}, so no process can import it"
    )
    return InvalidInput(problem, field="isolate", hint=_HINT)


def require_found(task: str, origin: Origin, handler: object) -> None:
    """Refuses a task that a child will not find in the module that it imports."""
    refuse_work_while_importing()
    found = origin.find()
    if getattr(found, "handler", None) is not handler:
        there = "nothing" if found is None else repr(found)
        raise _unreachable(task, f"{origin.module}:{origin.qualname} is {there}")


def main_place() -> dict[str, str]:
    """Where the main module of this process can be imported from; empty if it cannot."""
    main = sys.modules[_MAIN]
    name: object = getattr(main.__spec__, "name", None)
    # The main module of a package runs when it is imported.
    if isinstance(name, str) and name.rpartition(".")[2] != _MAIN:
        return {"init_main_from_name": name}
    path: object = getattr(main, "__file__", None)
    if name is None and isinstance(path, str) and Path(path).is_file():
        return {"init_main_from_path": str(Path(path).absolute())}
    return {}


def import_path() -> list[str]:
    """Where this process looks for modules, as another folder sees it."""
    return [each or str(Path.cwd()) for each in sys.path]


def find(origin: Origin, main: dict[str, str]) -> object:
    """In a child: import what defines the task."""
    with _no_work(origin.module):
        if origin.module == _MAIN and sys.modules[_MAIN] not in _mains:
            import_module("multiprocessing.spawn").prepare(main)
            _mains.append(sys.modules[_MAIN])
        return origin.find()


@contextmanager
def _no_work(module: str) -> Iterator[None]:
    _importing.append(module)
    try:
        yield
    finally:
        _importing.pop()


def refuse_work_while_importing() -> None:
    """A script without the guard would begin its work again in every child."""
    if _importing:
        raise Refused(
            f"module {_importing[-1]!r} starts work while process {os.getpid()} imports it to run"
            " a task with isolate='process'",
            hint="put what the module runs under `if __name__ == '__main__':`",
        )
