"""Arguments and results as bytes: JSON by type, nothing else, and never pickled.

The one room of the worker that handles values whose types only the user knows. A value that would
not come back as it went in is refused before it is stored.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from flowfabric.core import names
from flowfabric.errors import FlowFabricError, InvalidInput
from flowfabric.worker.conversion import Conversion
from flowfabric.worker.conversion_errors import Unreadable
from flowfabric.worker.faithful import SCALARS, Difference, difference, endless
from flowfabric.worker.parts import inner
from flowfabric.worker.shapes import NO_HOOKS, shape_of

_NULL = b"null"
_RESULT = "result"
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
            hint="define its types at module level",
        ) from error


class _Kind:
    """An annotation: how to read what was written, and what it promises."""

    def __init__(self, task: str, kind: Any, conversion: Conversion) -> None:
        self.is_any = kind is Any or kind is object
        # As the decoder gets it.
        self.read: Any = _rewritten(task, kind, conversion)
        self.is_spelled = self.read is not kind
        self.decoder = _decoder(task, self.read, conversion)
        self.shape = shape_of(self.read, conversion)
        self.text = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)


class ArgumentCodec:
    """The arguments of one function. A default stays with the function: it is not stored."""

    def __init__(
        self,
        name: str,
        parameters: list[inspect.Parameter],
        hints: Mapping[str, Any],
        conversion: Conversion = NO_HOOKS,
    ) -> None:
        self._task = name
        self._conversion = conversion
        self._has_defaults = any(each.default is not each.empty for each in parameters)
        self._kinds: dict[str, _Kind] = {}
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        for parameter in parameters:
            kind = _Kind(name, hints.get(parameter.name, Any), conversion)
            self._kinds[parameter.name] = kind
            if parameter.default is parameter.empty:
                fields.append((parameter.name, kind.read))
            else:
                fields.append((parameter.name, kind.read | msgspec.UnsetType, msgspec.UNSET))
        self._spelled = [name for name, kind in self._kinds.items() if kind.is_spelled]
        struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        self._decoder = _decoder(name, struct, conversion)

    def encode(self, values: Mapping[str, object]) -> bytes:
        """Checked by decoding it as the worker will: a mistake is found where it is made."""
        payload = self._written(values)
        try:
            back = self._decoder.decode(payload)
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._unreadable(values, error) from error
        for name, given in values.items():
            arrived = getattr(back, name)
            kind = type(given)
            if kind is type(arrived) and kind in SCALARS:
                continue
            self._require(self._difference(given, arrived, name))
        return payload

    def encode_open(self, values: Mapping[str, object], later: Collection[str]) -> bytes:
        """`later`: values that come later, wholly or in part; the worker checks them."""
        payload = self._written(values)
        for name, given in values.items():
            kind = self._kinds[name]
            if name not in later or kind.is_any:
                self._require(self._alone(name, given))
            elif given is not None:
                self._require(endless(given, name, self._conversion))
        return payload

    def is_unsaid(self, name: str) -> bool:
        """Whether no annotation says what this parameter takes."""
        return self._kinds[name].is_any

    def _alone(self, name: str, given: object) -> Difference | None:
        kind = self._kinds[name]
        said = self._conversion.spelled_out(given) if kind.is_spelled else given
        try:
            back = kind.decoder.decode(self._conversion.encoder.encode(said))
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._unreadable({name: given}, error, name) from error
        return self._difference(given, back, name)

    def _difference(self, given: object, back: object, name: str) -> Difference | None:
        shape = self._kinds[name].shape
        return difference(given, back, shape, name, conversion=self._conversion)

    def _written(self, values: Mapping[str, object]) -> bytes:
        conversion = self._conversion
        try:
            if self._spelled:
                given = [name for name in self._spelled if name in values]
                said = {name: conversion.spelled_out(values[name]) for name in given}
                payload = conversion.encoder.encode({**values, **said})
            else:
                payload = conversion.encoder.encode(values)
        except _UNSTORABLE as error:
            raise self._unstorable(values, error) from error
        names.body(payload, "arguments")
        return payload

    def _unstorable(self, values: Mapping[str, object], error: Exception) -> FlowFabricError:
        for name, value in values.items():
            found = _unstorable(value, name, self._conversion)
            if found is not None:
                return found
        return InvalidInput(f"cannot be stored: {error}", field="arguments")

    def _require(self, found: Difference | None) -> None:
        if found is not None:
            raise InvalidInput(
                f"task {self._task!r}: {found.problem}", field=found.path, hint=found.hint
            )

    def _unreadable(
        self, values: Mapping[str, object], error: Exception, inside: str = ""
    ) -> FlowFabricError:
        for name, value in values.items():
            self._require(endless(value, name, self._conversion))
        path = _field_of(error)
        field = ".".join(filter(None, (inside, path))).replace(".[", "[") or "arguments"
        return InvalidInput(f"task {self._task!r}: {error}", field=field, hint="check the argument")

    def decode(self, payload: bytes) -> dict[str, object]:
        found = msgspec.structs.asdict(self._decoder.decode(payload))
        if not self._has_defaults:
            return found
        return {name: value for name, value in found.items() if value is not msgspec.UNSET}


class ResultCodec:
    """What a function returns."""

    def __init__(
        self, name: str, hints: Mapping[str, Any], conversion: Conversion = NO_HOOKS
    ) -> None:
        self._task = name
        self._conversion = conversion
        returned = _awaited(hints.get("return", Any))
        self._kind = _Kind(name, returned, conversion)
        # Of these the type alone says that it comes back as it is, unless it became a null.
        self._sure = frozenset(each for each in SCALARS if returned in (Any, each))

    @property
    def needs(self) -> str:
        """The annotation without which a result would be read as something else; empty if none."""
        return "" if self._kind.shape.is_plain else self._kind.text

    def encode(self, result: object) -> bytes:
        """Raises `InvalidInput` or `PayloadTooLarge` for what cannot be stored, or would not come
        back as the annotation says."""
        conversion = self._conversion
        try:
            said = conversion.spelled_out(result) if self._kind.is_spelled else result
            body = conversion.encoder.encode(said)
        except _UNSTORABLE as error:
            found = _unstorable(result, _RESULT, conversion)
            raise found or InvalidInput(f"cannot be stored: {error}", field=_RESULT) from error
        names.body(body, "result")
        if type(result) not in self._sure or (result is not None and body == _NULL):
            self._require_same(result, body)
        return body

    def _require_same(self, result: object, body: bytes) -> None:
        kind = self._kind
        found: Difference | None
        try:
            back = kind.decoder.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            path = _field_of(error)
            found = endless(result, _RESULT, self._conversion) or Difference(
                f"{_RESULT}.{path}".replace(".[", "[").rstrip("."),
                f"expected {kind.text}, got {type(result).__name__}: {error}",
                "correct the annotation or the returned value",
            )
        else:
            found = difference(result, back, kind.shape, _RESULT, conversion=self._conversion)
        if found is not None:
            raise InvalidInput(
                f"task {self._task!r}, which returns {kind.text}: {found.problem}",
                field=found.path,
                hint=found.hint,
            )

    def decode(self, body: bytes) -> Any:
        """Raises `InvalidInput` for a result that is not what the annotation promises."""
        try:
            return self._kind.decoder.decode(body)
        except msgspec.DecodeError as error:
            raise InvalidInput(
                f"task {self._task!r} returned a value of another type than annotated: {error}",
                field="result",
                hint="correct the annotation; `app.handle(id)` reads the result without types",
            ) from error


def _decoder(name: str, kind: Any, conversion: Conversion) -> msgspec.json.Decoder[Any]:
    try:
        return msgspec.json.Decoder(kind, dec_hook=conversion.read)
    except TypeError as error:
        raise _unreadable_kind(name, error) from error


def _rewritten(name: str, kind: Any, conversion: Conversion) -> Any:
    try:
        return conversion.annotations.rewritten(kind)
    except TypeError as error:
        raise _unreadable_kind(name, error) from error


def _unreadable_kind(name: str, error: TypeError) -> InvalidInput:
    return InvalidInput(
        f"task {name!r} has a type that cannot be stored: {error}",
        field="annotations",
        hint="use JSON types, dataclasses, TypedDicts, dates or bytes",
    )


def _unstorable(value: object, path: str, conversion: Conversion) -> FlowFabricError | None:
    """Names the innermost part that is the trouble."""
    try:
        conversion.encoder.encode(conversion.spelled_out(value))
    except _UNSTORABLE as error:
        parts = () if isinstance(error, RecursionError) else inner(value, path)
        found = (_unstorable(part, place, conversion) for place, part in parts)
        return next(filter(None, found), None) or InvalidInput(
            f"cannot be stored: {error}",
            field=path,
            hint="use JSON values, dataclasses, pydantic models, dates or bytes",
        )
    return None


def _awaited(kind: Any) -> Any:
    """What a function answers that is not async but returns something to await."""
    return get_args(kind)[-1] if get_origin(kind) in (Awaitable, Coroutine) else kind


def _field_of(error: Exception) -> str:
    """Where it is wrong: the place that the decoder tells, and inside that the one of a hook."""
    _, found, path = str(error).rpartition(" - at `$")
    inside = error.__cause__.place if isinstance(error.__cause__, Unreadable) else ""
    return f"{path.rstrip('`') if found else ''}{inside}".lstrip(".")
