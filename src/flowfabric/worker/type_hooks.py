"""TypeHook: how a type that JSON does not know travels, said by the program that uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TypeVar, cast
from uuid import UUID

from flowfabric.errors import InvalidInput

T = TypeVar("T")
J = TypeVar("J")

# Types that travel by themselves, always in the same form.
_FIXED = frozenset(
    {
        *(object, type(None), bool, int, float, str, bytes, bytearray, memoryview),
        *(list, tuple, set, frozenset, dict),
        *(datetime, date, time, timedelta, UUID, Decimal),
    }
)


class TypeHook:
    """How one type is stored: `encode` makes a JSON value of an instance, `decode` reads it again.

    What `encode` leaves out is lost. Both run wherever values are written or read: in the process
    that starts the task, in the worker, and where the result is read.
    """

    __slots__ = ("decode", "encode", "type")

    def __init__(
        self, type_: type[T], *, encode: Callable[[T], J], decode: Callable[[J], T]
    ) -> None:
        self.type: type[object] = type_
        # What `encode` makes is what `decode` takes; nothing else is passed to either.
        self.encode = cast(Callable[[object], object], encode)
        self.decode = cast(Callable[[object], object], decode)
        if not isinstance(type_, type):
            raise InvalidInput(
                f"a TypeHook needs a class (got {type_!r})", field="type", hint="pass the class"
            )
        for name, function in (("encode", encode), ("decode", decode)):
            if not callable(function):
                raise InvalidInput(
                    f"{name} of {type_.__name__} must be a function (got {function!r})",
                    field=name,
                    hint="pass a function of one value, such as str",
                )
        if type_ in _FIXED:
            raise InvalidInput(
                f"{type_.__name__} needs no TypeHook",
                field="types",
                hint="use hooks for other classes; docs/reference/values.md lists the types",
            )

    def __repr__(self) -> str:
        return f"TypeHook({self.type.__name__})"


def hooks_by_type(hooks: Iterable[TypeHook]) -> dict[type[object], TypeHook]:
    """Refuses what is no hook, and two hooks for one type."""
    found: dict[type[object], TypeHook] = {}
    for hook in hooks:
        if not isinstance(hook, TypeHook):
            raise InvalidInput(
                f"expected a TypeHook, got {hook!r}",
                field="types",
                hint="use types=[TypeHook(Money, encode=..., decode=...)]",
            )
        if hook.type in found:
            raise InvalidInput(
                f"{hook.type.__name__} has two TypeHooks", field="types", hint="remove one"
            )
        found[hook.type] = hook
    return found
