"""Arguments and results as bytes: JSON by type, nothing else, and never pickled.

The one room of the worker that handles values whose types only the user knows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_type_hints

import msgspec

from flowfabric.core import names
from flowfabric.errors import FlowFabricError, InvalidInput

_encoder = msgspec.json.Encoder()
_UNSTORABLE = (TypeError, ValueError, OverflowError, RecursionError)


def annotations_of(name: str, function: Callable[..., object]) -> dict[str, Any]:
    """The types that a function names for its parameters and its result."""
    while isinstance(function, partial):
        function = function.func
    try:
        return get_type_hints(function, include_extras=True)
    except Exception as error:
        # Annotations are the user's expressions: reading them can fail in any way.
        raise InvalidInput(
            f"the annotations of task {name!r} cannot be read: {error}",
            field="annotations",
            hint="define the types it names at module level",
        ) from error


class ArgumentCodec:
    """The arguments of one function. A default stays with the function: it is not stored."""

    def __init__(
        self, name: str, parameters: list[inspect.Parameter], hints: Mapping[str, Any]
    ) -> None:
        self._task = name
        self._has_defaults = any(each.default is not each.empty for each in parameters)
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        for parameter in parameters:
            kind = hints.get(parameter.name, Any)
            if parameter.default is parameter.empty:
                fields.append((parameter.name, kind))
            else:
                fields.append((parameter.name, kind | msgspec.UnsetType, msgspec.UNSET))
        struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        self._decoder = _decoder(name, struct)

    def encode(self, values: Mapping[str, object]) -> bytes:
        """Checked by decoding it as the worker will: a mistake is found where it is made."""
        payload = self.encode_open(values)
        try:
            self._decoder.decode(payload)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidInput(
                f"task {self._task!r}: {error}", field=_field_of(error), hint="check the argument"
            ) from error
        return payload

    def encode_open(self, values: Mapping[str, object]) -> bytes:
        """Not checked: some of the values come later."""
        try:
            payload = _encoder.encode(values)
        except _UNSTORABLE as error:
            raise _unstorable(values, error) from error
        names.body(payload, "arguments")
        return payload

    def decode(self, payload: bytes) -> dict[str, object]:
        found = msgspec.structs.asdict(self._decoder.decode(payload))
        if not self._has_defaults:
            return found
        return {name: value for name, value in found.items() if value is not msgspec.UNSET}


class ResultCodec:
    """What a function returns."""

    def __init__(self, name: str, hints: Mapping[str, Any]) -> None:
        self._task = name
        self._decoder = _decoder(name, hints.get("return", Any))

    def encode(self, result: object) -> bytes:
        """Raises `InvalidInput` or `PayloadTooLarge` for what cannot be stored."""
        try:
            body = _encoder.encode(result)
        except _UNSTORABLE as error:
            raise InvalidInput(
                f"cannot be stored: {error}",
                field="result",
                hint="return JSON values, dataclasses, dates or bytes",
            ) from error
        names.body(body, "result")
        return body

    def decode(self, body: bytes) -> Any:
        """Raises `InvalidInput` for a result that is not what the annotation promises."""
        try:
            return self._decoder.decode(body)
        except msgspec.DecodeError as error:
            raise InvalidInput(
                f"task {self._task!r} returned something else than it is annotated with: {error}",
                field="result",
                hint="correct the annotation; `app.handle(id)` reads the result without types",
            ) from error


def decode_any(body: bytes) -> Any:
    """A result of a task that is not known here."""
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise InvalidInput(
            f"is not JSON: {error}", field="result", hint="read it with `app.engine.read.result`"
        ) from error


def _decoder(name: str, kind: Any) -> msgspec.json.Decoder[Any]:
    try:
        return msgspec.json.Decoder(kind)
    except TypeError as error:
        raise InvalidInput(
            f"task {name!r} has a type that cannot be stored: {error}",
            field="annotations",
            hint="use JSON types, dataclasses, TypedDicts, dates or bytes",
        ) from error


def _unstorable(values: Mapping[str, object], error: Exception) -> FlowFabricError:
    """Names the argument that is the trouble."""
    for name, value in values.items():
        try:
            _encoder.encode(value)
        except _UNSTORABLE as own:
            return InvalidInput(
                f"cannot be stored: {own}",
                field=name,
                hint="pass JSON values, dataclasses, dates or bytes",
            )
    return InvalidInput(f"cannot be stored: {error}", field="arguments")


def _field_of(error: Exception) -> str:
    _, _, path = str(error).rpartition(" - at `$.")
    return path.rstrip("`") or "arguments"
