"""A user's function as the worker sees it: how its arguments and its result become bytes.

Values are JSON by type. What a caller passes is checked by decoding it as the worker will, so a
mistake is found where it is made. Nothing is ever pickled.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import msgspec

from flowfabric.errors import FlowFabricError, InvalidInput, PayloadTooLarge
from flowfabric.worker.context import Context

PAYLOAD_LIMIT_BYTES = 1 << 20

_encode = msgspec.json.Encoder().encode
_PLAIN = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Handler:
    """One registered function."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        hints = _hints(name, function)
        parameters = list(inspect.signature(function).parameters.values())
        self.takes_context = bool(parameters) and hints.get(parameters[0].name) is Context
        if self.takes_context:
            parameters = parameters[1:]
        for parameter in parameters:
            if parameter.kind not in _PLAIN:
                raise InvalidInput(
                    f"task {name!r} takes {parameter}",
                    field=parameter.name,
                    hint="name every argument of a task",
                )
        self.names = tuple(parameter.name for parameter in parameters)
        self._positional = tuple(
            p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        )
        self._required = frozenset(p.name for p in parameters if p.default is p.empty)
        self._arguments = _arguments_decoder(name, parameters, hints)
        self._result: msgspec.json.Decoder[Any] = _decoder(name, hints.get("return", Any))

    def encode_arguments(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes:
        """The payload of a call, checked as the worker will read it."""
        values = self._bind(args, kwargs)
        try:
            payload = _encode(values)
        except (TypeError, ValueError, OverflowError) as error:
            raise self._unserialisable(values, error) from error
        require_size(payload, "arguments")
        try:
            self._arguments.decode(payload)
        except msgspec.ValidationError as error:
            raise InvalidInput(
                f"task {self.name!r}: {error}", field=_field_of(error), hint="check the argument"
            ) from error
        return payload

    def _bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
        if len(args) > len(self._positional):
            raise self._mismatch(f"takes {len(self._positional)} positional arguments", "arguments")
        values = dict(zip(self._positional, args, strict=False))
        for name, value in kwargs.items():
            if name in values:
                raise self._mismatch(f"got {name!r} twice", name)
            if name not in self.names:
                raise self._mismatch(f"has no argument {name!r}", name)
            values[name] = value
        missing = sorted(self._required - values.keys())
        if missing:
            raise self._mismatch(f"needs {', '.join(missing)}", missing[0])
        return values

    def _mismatch(self, problem: str, field: str) -> InvalidInput:
        shape = f"{self.name}({', '.join(self.names)})"
        return InvalidInput(
            f"task {self.name!r} {problem}", field=field, hint=f"call it as {shape}"
        )

    def _unserialisable(self, values: Mapping[str, object], error: Exception) -> FlowFabricError:
        for name, value in values.items():
            try:
                _encode(value)
            except (TypeError, ValueError, OverflowError) as own:
                return InvalidInput(
                    f"cannot be stored: {own}",
                    field=name,
                    hint="pass JSON values, dataclasses, dates or bytes",
                )
        return InvalidInput(f"cannot be stored: {error}", field="arguments")

    def decode_arguments(self, payload: bytes) -> dict[str, object]:
        """What the function is called with; arguments that were not given keep their defaults."""
        values = self._arguments.decode(payload)
        found = ((name, getattr(values, name)) for name in self.names)
        return {name: value for name, value in found if value is not msgspec.UNSET}

    def encode_result(self, result: object) -> bytes:
        body = _encode(result)
        require_size(body, "result")
        return body

    def decode_result(self, body: bytes) -> Any:
        return self._result.decode(body)


def require_size(body: bytes, field: str) -> None:
    if len(body) > PAYLOAD_LIMIT_BYTES:
        raise PayloadTooLarge(
            f"{len(body)} bytes are over the limit of {PAYLOAD_LIMIT_BYTES}", field=field
        )


def _hints(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise InvalidInput(
            f"the annotations of task {name!r} cannot be read: {error}",
            field="annotations",
            hint="define the types it names at module level",
        ) from error


def _arguments_decoder(
    name: str, parameters: list[inspect.Parameter], hints: Mapping[str, Any]
) -> msgspec.json.Decoder[Any]:
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for parameter in parameters:
        kind = hints.get(parameter.name, Any)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, kind))
        else:
            fields.append((parameter.name, kind | msgspec.UnsetType, msgspec.UNSET))
    struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
    return _decoder(name, struct)


def _decoder(name: str, kind: Any) -> msgspec.json.Decoder[Any]:
    try:
        return msgspec.json.Decoder(kind)
    except TypeError as error:
        raise InvalidInput(
            f"task {name!r} has a type that cannot be stored: {error}",
            field="annotations",
            hint="use JSON types, dataclasses, TypedDicts, dates or bytes",
        ) from error


def _field_of(error: msgspec.ValidationError) -> str:
    _, _, path = str(error).rpartition(" - at `$.")
    return path.rstrip("`") or "arguments"
