"""What a user may register as a task: which callables, under which name, and when a callable is the
one that was registered before, defined again."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import cast

from flowfabric.errors import InvalidInput

_LAMBDA = "<lambda>"
_LOCALS = "<locals>"
_MAIN = "__main__"
_NAME_HINT = "name it: app.task('name')(...)"


def callable_of(given: object) -> Callable[..., object]:
    """What to call; for what cannot be a task, an error that says what to write instead."""
    if isinstance(given, staticmethod):
        given = given.__func__
    if isinstance(given, classmethod):
        raise InvalidInput(
            f"{given.__func__.__qualname__} is a class method whose class does not exist yet",
            field="function",
            hint="register it after its class: app.task(TheClass.method)",
        )
    if isinstance(given, Awaitable):
        if isinstance(given, Coroutine):
            given.close()
        raise InvalidInput(
            f"{given!r} is a call, not a function",
            field="function",
            hint="pass the function itself, without calling it",
        )
    if not callable(given):
        raise InvalidInput(f"{given!r} is not a function", field="name", hint="decorate a function")
    return given


def name_of(function: Callable[..., object]) -> str:
    """The name that a function was defined with."""
    found: object = getattr(function, "__name__", None)
    if not isinstance(found, str) or found == _LAMBDA:
        what = "a lambda" if found == _LAMBDA else repr(function)
        raise InvalidInput(f"{what} has no name", field="name", hint=_NAME_HINT)
    return found


def body_of(function: Callable[..., object]) -> Callable[..., object]:
    """What carries the annotations: of an object with `__call__`, that method."""
    while isinstance(function, partial):
        function = function.func
    has_own = inspect.isroutine(function) or inspect.isclass(function)
    if has_own or hasattr(function, "__wrapped__"):
        return function
    return cast("Callable[..., object]", getattr(function, "__call__"))  # noqa: B004, B009


def require_task(
    name: str, function: Callable[..., object], parameters: Sequence[inspect.Parameter]
) -> None:
    """Refuses a generator, which returns no value, and a method that lacks its object."""
    body = body_of(function)
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise InvalidInput(
            f"task {name!r} is a generator function, which returns no result",
            field="function",
            hint="collect what it yields, and return the list",
        )
    owner = getattr(function, "__qualname__", "").rpartition(".")[0]
    is_in_class = owner != "" and not owner.endswith(_LOCALS)
    first = parameters[0].name if parameters else ""
    if is_in_class and inspect.isfunction(function) and first in ("self", "cls"):
        raise InvalidInput(
            f"task {name!r} is a method of {owner} and takes {first!r}",
            field=first,
            hint=f"register the method of an object, app.task(the_object.{function.__name__}), "
            "or make it a @staticmethod",
        )


def is_redefined(old: Callable[..., object], new: Callable[..., object]) -> bool:
    """Whether `new` is `old`, or the same definition that ran again: a notebook cell, a module that
    was reloaded. One definition that made two functions, as a factory does, made two tasks."""
    if old is new or (inspect.ismethod(old) and old == new):
        return True
    if not (inspect.isfunction(old) and inspect.isfunction(new)):
        return False
    if (old.__module__, old.__qualname__) != (new.__module__, new.__qualname__):
        return False
    if old.__code__ is new.__code__:
        return False
    # Any two lambdas of a module are called alike; only a notebook redefines one.
    return new.__name__ != _LAMBDA or new.__module__ == _MAIN
