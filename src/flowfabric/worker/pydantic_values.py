"""Pydantic models and dataclasses as JSON, read and written by pydantic itself.

Pydantic is imported when the first value of such a type is written or read, never before.
A model is stored by the names of its fields, and read by these or by their aliases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

from flowfabric.errors import FlowFabricError, MissingExtra
from flowfabric.worker.conversion_errors import Unreadable, Unstorable

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

OLDEST = (2, 11)
_ERRORS_SHOWN = 3
_WITH_CONFIG = ("__pydantic_validator__", "__dataclass_fields__", "__total__", "_fields")


def is_model(kind: type[object]) -> bool:
    """Whether it is a pydantic model or a pydantic dataclass."""
    return hasattr(kind, "__pydantic_validator__")


def is_readable(kind: type[object]) -> bool:
    """Whether pydantic knows how to read it: a model, or a type such as `HttpUrl`."""
    return is_model(kind) or hasattr(kind, "__get_pydantic_core_schema__")


class ByPydantic:
    """One type that pydantic reads and writes; a class, or a union of classes."""

    def __init__(self, kind: object) -> None:
        self._kind = kind

    def write(self, value: object) -> bytes:
        """Raises `Unstorable`."""
        try:
            return self._adapter.dump_json(value, by_alias=False, round_trip=True, warnings=False)
        except FlowFabricError:
            raise
        except Exception as error:
            # Serializers are the user's: they can fail in any way.
            raise Unstorable(f"{type(value).__name__}: {error}") from error

    def plain(self, value: object) -> object:
        """The same as builtin values, with numbers that JSON does not have."""
        found: object = self._adapter.dump_python(
            value, mode="json", by_alias=False, round_trip=True, warnings=False
        )
        return found

    def read(self, written: bytes) -> object:
        """Raises `Unreadable` with the place inside the value."""
        try:
            return self._adapter.validate_json(written, by_alias=True, by_name=True)
        except import_module("pydantic").ValidationError as error:
            raise _unreadable(error) from error

    @cached_property
    def _adapter(self) -> TypeAdapter[object]:
        """Made late: a model may name others that are defined after it."""
        try:
            pydantic = import_module("pydantic")
        except ImportError as error:
            raise _missing(f"{self._kind!r} is read by pydantic, which is missing") from error
        if tuple(map(int, pydantic.VERSION.split(".")[:2])) < OLDEST:
            raise _missing(f"pydantic {pydantic.VERSION} is too old")
        # Types with a configuration of their own keep it; in the others bytes are as elsewhere.
        is_own = any(hasattr(self._kind, name) for name in _WITH_CONFIG)
        config = None if is_own else pydantic.ConfigDict(val_json_bytes="base64")
        made: TypeAdapter[object] = pydantic.TypeAdapter(self._kind, config=config)
        return made


def keys(kind: type[object]) -> set[str]:
    """All that a field of a model may be called in its plain form."""
    found: set[str] = set()
    for name, field in getattr(kind, "__pydantic_fields__", {}).items():
        alias = field.validation_alias
        found |= {name, *_first_names(field.alias), *_first_names(alias)}
    return found


def fields(value: object) -> dict[str, object] | None:
    """The fields of a model, with those beyond its definition that it allows; else None."""
    names: object = getattr(type(value), "__pydantic_fields__", None)
    if not isinstance(names, dict):
        return None
    extra: object = getattr(value, "__pydantic_extra__", None)
    found = {str(name): getattr(value, str(name), None) for name in names}
    return found | extra if isinstance(extra, dict) else found


def content(value: object) -> object:
    """What a model that has no fields stands for; anything else is itself."""
    is_root: object = getattr(type(value), "__pydantic_root_model__", False)
    return getattr(value, "root", None) if is_root is True else value


def _first_names(alias: object) -> Iterator[str]:
    """Of an alias: a name, a path that begins with one, or a choice of these."""
    if isinstance(alias, str):
        yield alias
    path: object = getattr(alias, "path", None)
    if isinstance(path, Sequence) and path and isinstance(path[0], str):
        yield path[0]
    choices: object = getattr(alias, "choices", None)
    if isinstance(choices, Sequence):
        for choice in choices:
            yield from _first_names(choice)


def _missing(problem: str) -> FlowFabricError:
    return MissingExtra(problem, hint="pip install 'flowfabric[pydantic]'")


def _unreadable(error: ValidationError) -> Unreadable:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    told = [f"{_place(each['loc'])[1:] or 'value'}: {each['msg']}" for each in found]
    more = f" (and {len(told) - _ERRORS_SHOWN} more)" if len(told) > _ERRORS_SHOWN else ""
    return Unreadable("; ".join(told[:_ERRORS_SHOWN]) + more, _place(found[0]["loc"]))


def _place(steps: Sequence[int | str]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
