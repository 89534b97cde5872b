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
from flowfabric.worker.faithful import SCALARS, Difference, difference, endless, shape_of

_encoder = msgspec.json.Encoder()
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
            hint="define the types it names at module level",
        ) from error


class _Kind:
    """An annotation: how to read what was written, and what it promises."""

    def __init__(self, task: str, kind: Any) -> None:
        self.is_any = kind is Any or kind is object
        self.decoder = _decoder(task, kind)
        self.shape = shape_of(kind)
        self.text = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)


class ArgumentCodec:
    """The arguments of one function. A default stays with the function: it is not stored."""

    def __init__(
        self, name: str, parameters: list[inspect.Parameter], hints: Mapping[str, Any]
    ) -> None:
        self._task = name
        self._has_defaults = any(each.default is not each.empty for each in parameters)
        self._kinds: dict[str, _Kind] = {}
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        for parameter in parameters:
            kind = hints.get(parameter.name, Any)
            self._kinds[parameter.name] = _Kind(name, kind)
            if parameter.default is parameter.empty:
                fields.append((parameter.name, kind))
            else:
                fields.append((parameter.name, kind | msgspec.UnsetType, msgspec.UNSET))
        struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        self._decoder = _decoder(name, struct)

    def encode(self, values: Mapping[str, object]) -> bytes:
        """Checked by decoding it as the worker will: a mistake is found where it is made."""
        payload = _written(values)
        try:
            back = self._decoder.decode(payload)
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._unreadable(values, error) from error
        for name, given in values.items():
            arrived = getattr(back, name)
            kind = type(given)
            if kind is type(arrived) and kind in SCALARS:
                continue
            self._require(difference(given, arrived, self._kinds[name].shape, name))
        return payload

    def encode_open(self, values: Mapping[str, object], later: Collection[str]) -> bytes:
        """`later`: values that come later, wholly or in part; the worker checks them."""
        payload = _written(values)
        for name, given in values.items():
            kind = self._kinds[name]
            if name not in later or kind.is_any:
                self._require(self._alone(name, given))
            elif given is not None:
                self._require(endless(given, name))
        return payload

    def is_unsaid(self, name: str) -> bool:
        """Whether no annotation says what this parameter takes."""
        return self._kinds[name].is_any

    def _alone(self, name: str, given: object) -> Difference | None:
        kind = self._kinds[name]
        try:
            back = kind.decoder.decode(_encoder.encode(given))
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._unreadable({name: given}, error, name) from error
        return difference(given, back, kind.shape, name)

    def _require(self, found: Difference | None) -> None:
        if found is not None:
            raise InvalidInput(
                f"task {self._task!r}: {found.problem}", field=found.path, hint=found.hint
            )

    def _unreadable(
        self, values: Mapping[str, object], error: Exception, inside: str = ""
    ) -> FlowFabricError:
        for name, value in values.items():
            self._require(endless(value, name))
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

    def __init__(self, name: str, hints: Mapping[str, Any]) -> None:
        self._task = name
        returned = _awaited(hints.get("return", Any))
        self._kind = _Kind(name, returned)
        # Of these the type alone says that it comes back as it is, unless it became a null.
        self._sure = frozenset(each for each in SCALARS if returned in (Any, each))

    @property
    def needs(self) -> str:
        """The annotation without which a result would be read as something else; empty if none."""
        return "" if self._kind.shape.is_plain else self._kind.text

    def encode(self, result: object) -> bytes:
        """Raises `InvalidInput` or `PayloadTooLarge` for what cannot be stored, or would not come
        back as the annotation says."""
        try:
            body = _encoder.encode(result)
        except _UNSTORABLE as error:
            raise InvalidInput(
                f"cannot be stored: {error}",
                field="result",
                hint="return JSON values, dataclasses, dates or bytes",
            ) from error
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
            found = endless(result, _RESULT) or Difference(
                _RESULT,
                f"expected {kind.text}, got {type(result).__name__}: {error}",
                "correct the annotation, or what is returned",
            )
        else:
            found = difference(result, back, kind.shape, _RESULT)
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


def _written(values: Mapping[str, object]) -> bytes:
    try:
        payload = _encoder.encode(values)
    except _UNSTORABLE as error:
        raise _unstorable(values, error) from error
    names.body(payload, "arguments")
    return payload


def _awaited(kind: Any) -> Any:
    """What a function answers that is not async but returns something to await."""
    return get_args(kind)[-1] if get_origin(kind) in (Awaitable, Coroutine) else kind


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
    return path.rstrip("`")
