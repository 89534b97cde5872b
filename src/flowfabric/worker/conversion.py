"""Conversion: how the values of an app that JSON does not know become JSON, and values again.

Types with a `TypeHook`, and those of pydantic's. What neither knows is refused by its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast, get_origin

import msgspec

from flowfabric.errors import FlowFabricError
from flowfabric.worker.conversion_errors import Unreadable, Unstorable
from flowfabric.worker.pydantic_values import ByPydantic
from flowfabric.worker.stand_ins import Annotations, Read
from flowfabric.worker.type_hooks import TypeHook, hooks_by_type

_CONTAINERS = (list, tuple, set, frozenset)


class Conversion:
    """One per app."""

    def __init__(self, hooks: Iterable[TypeHook] = ()) -> None:
        self.annotations = Annotations(hooks_by_type(hooks), self._one_of)
        self.encoder = msgspec.json.Encoder(enc_hook=self.write)
        self._by_pydantic: dict[type[object], ByPydantic] = {}

    def write(self, value: object) -> object:
        """For the encoder: what to write in the place of a value that it does not know."""
        hook = self.annotations.hook_of(type(value))
        if hook is not None:
            return _encoded(hook, value)
        return msgspec.Raw(self._known(type(value)).write(value))

    def plain(self, value: object) -> object:
        """As builtin values, with numbers that JSON does not have."""
        return msgspec.to_builtins(value, enc_hook=self._plain)

    def _plain(self, value: object) -> object:
        hook = self.annotations.hook_of(type(value))
        if hook is not None:
            return _encoded(hook, value)
        return self._known(type(value)).plain(value)

    def read(self, kind: type[object], value: object) -> object:
        """For the decoder: what was written so, in the place of this class."""
        read = self.annotations.readers.get(kind)
        of: type[object] = get_origin(kind) or kind
        try:
            return (read or self._reader(of))(value)
        except (Unreadable, FlowFabricError):
            raise
        except Exception as error:
            # Hooks and models are the user's: reading them can fail in any way.
            told = f"{of.__name__} cannot be read: {type(error).__name__}: {error}"
            raise Unreadable(told) from error

    def spelled_out(self, value: object) -> object:
        """The value, with what the encoder would write in another way written already."""
        write = self.annotations.writers.get(type(value))
        if write is not None:
            hook = self.annotations.hook_of(type(value))
            return write(value) if hook is None else self.spelled_out(_encoded(hook, value))
        if isinstance(value, dict):
            return {key: self.spelled_out(each) for key, each in value.items()}
        if isinstance(value, _CONTAINERS) and type(value) in _CONTAINERS:
            return [self.spelled_out(each) for each in value]
        return value

    def has_hook(self, kind: type[object]) -> bool:
        return self.annotations.hook_of(kind) is not None

    def encoded(self, value: object) -> bytes:
        """Of a value with a hook: all that is stored of it."""
        return self.encoder.encode(self.spelled_out(self.write(value)))

    def _reader(self, kind: type[object]) -> Read:
        hook = self.annotations.hook_of(kind)
        if hook is not None and hook.type is kind:
            return hook.decode
        if not self.annotations.is_known(kind):
            # The decoder then looks whether it is an instance already.
            return lambda value: value
        by = self._known(kind)
        return lambda value: by.read(msgspec.json.encode(value))

    def _one_of(self, kind: object, members: tuple[object, ...]) -> Read:
        """Reads a union: pydantic chooses the member, unless it knows not all of them."""
        if self.annotations.is_known_to_pydantic(kind):
            by = ByPydantic(kind)
            return lambda value: by.read(msgspec.json.encode(value))
        kinds = [cast(type[object], self.annotations.rewritten(each)) for each in members]
        decoders = [msgspec.json.Decoder(each, dec_hook=self.read) for each in kinds]

        def first(value: object) -> object:
            written = msgspec.json.encode(value)
            for decoder in decoders:
                try:
                    return decoder.decode(written)
                except msgspec.ValidationError:
                    continue
            raise Unreadable(f"is none of {kind}")

        return first

    def _known(self, kind: type[object]) -> ByPydantic:
        found = self._by_pydantic.get(kind)
        if found is None:
            if not self.annotations.is_known(kind):
                raise Unstorable(
                    f"{kind.__name__} has no JSON form; register one:"
                    f" App(types=[TypeHook({kind.__name__}, encode=..., decode=...)])"
                )
            found = self._by_pydantic[kind] = ByPydantic(kind)
        return found


def _encoded(hook: TypeHook, value: object) -> object:
    try:
        return hook.encode(value)
    except Exception as error:
        # The hook is the user's: it can fail in any way.
        told = f"{hook!r} cannot encode it: {type(error).__name__}: {error}"
        raise Unstorable(told) from error
