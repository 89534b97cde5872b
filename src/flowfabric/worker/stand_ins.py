"""Annotations made readable: what the decoder cannot read by itself gets a stand-in.

The decoder hands each class that it does not know to a hook. There are annotations that it would
read without asking (a dataclass of pydantic's, a class with a `TypeHook`), or not at all (a union
of models). In their place the decoder gets a class made for it, with the function that reads it.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import reduce
from types import GenericAlias, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict
from uuid import UUID

import msgspec

from flowfabric.worker.pydantic_values import ByPydantic, is_model, is_readable
from flowfabric.worker.type_hooks import TypeHook

# Reads the JSON value of what a stand-in is for.
Read = Callable[[object], object]
Write = Callable[[object], object]
# Makes the function that reads one of several annotations.
Choose = Callable[[object, tuple[object, ...]], Read]

_UNIONS = (Union, UnionType)
# Of subclasses of these the encoder asks no hook.
_WRITTEN = (list, tuple, dict, set, frozenset, UUID, Enum, msgspec.Struct)


class StandIn(type):
    """The class of stand-ins: whatever was read in the place of one is an instance of it."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


class Annotations:
    """Rewrites annotations, and keeps what reads the stand-ins in them and what writes values."""

    def __init__(self, hooks: Mapping[type[object], TypeHook], choose: Choose) -> None:
        self._hooks = hooks
        self._choose = choose
        self._open: list[object] = []
        self.readers: dict[type[object], Read] = {}
        # What the encoder would write by itself, and not as its reader reads it.
        self.writers: dict[type[object], Write] = {}

    def rewritten(self, kind: object) -> object:
        """The annotation for the decoder; the same object where it needs no stand-in.

        Raises `TypeError` for what cannot be read.
        """
        origin, args = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self._annotated(kind, args)
        if origin in _UNIONS:
            return self._union(kind, args)
        if origin is Literal:
            return kind
        if isinstance(origin, type) and not self._is_record(origin):
            return self._generic(kind, origin, args)
        of = origin or kind
        return self._of_class(kind, of) if isinstance(of, type) else self._of_name(kind)

    def is_known(self, kind: type[object]) -> bool:
        """Whether a hook, or pydantic, reads what is annotated so."""
        if isinstance(kind, StandIn) or kind in self._hooks:
            return True
        return is_readable(kind) and (is_model(kind) or not _is_written(kind))

    def is_known_to_pydantic(self, kind: object) -> bool:
        """Whether pydantic can read all of it."""
        inside = [each for each in self._inside(kind, set()) if isinstance(each, type)]
        return not any(each in self._hooks or _is_foreign(each) for each in inside)

    def hook_of(self, kind: type[object]) -> TypeHook | None:
        """The hook for instances of this class: its own, or that of the next class above it."""
        return next(filter(None, map(self._hooks.get, kind.__mro__)), None) if self._hooks else None

    def _annotated(self, kind: object, args: tuple[object, ...]) -> object:
        inner = args[0]
        if get_origin(inner) in _UNIONS and self._is_torn(get_args(inner)):
            # With what is said about the union: it may name the field that tells its members.
            return self._stand_in("union", self._choose(kind, get_args(inner)))
        found = self.rewritten(inner)
        # What is said about a value holds for its JSON value, not for what a hook makes of it.
        return kind if found is inner else found

    def _union(self, kind: object, args: tuple[object, ...]) -> object:
        if self._is_torn(args):
            return self._stand_in("union", self._choose(kind, args))
        found = tuple(map(self.rewritten, args))
        return kind if _are_same(found, args) else reduce(operator.or_, found)

    def _generic(self, kind: object, origin: type[object], args: tuple[object, ...]) -> object:
        if origin in self._hooks:
            return self._of_hook(self._hooks[origin])
        found = tuple(map(self.rewritten, args))
        return kind if _are_same(found, args) else GenericAlias(origin, found)

    def _of_name(self, kind: object) -> object:
        """A type with a name of its own (`NewType`, `type Name = ...`), which may name itself."""
        meant = _meant(kind)
        if meant is None or any(kind is each for each in self._open):
            return kind
        self._open.append(kind)
        try:
            found = self.rewritten(meant)
        finally:
            self._open.pop()
        return kind if found is meant else found

    def _of_class(self, kind: object, of: type[object]) -> object:
        if of in self._hooks:
            return self._of_hook(self._hooks[of])
        if self._is_record(of):
            inside = list(self._inside(kind, set()))
            self._require_asked(of, inside)
            if any(map(self._is_for_pydantic, inside)):
                return self._of_record(kind, of)
        return kind

    def _of_hook(self, hook: TypeHook) -> object:
        self.writers[hook.type] = hook.encode
        return self._stand_in(hook.type.__name__, hook.decode)

    def _of_record(self, kind: object, of: type[object]) -> object:
        """A record that pydantic reads and writes as a whole."""
        if _is_foreign(of):
            raise TypeError(f"{of.__name__} has a field that only pydantic reads; make it a model")
        by = ByPydantic(kind)
        if not is_typeddict(of):
            self.writers[of] = lambda value: msgspec.Raw(by.write(value))
        return self._stand_in(of.__name__, lambda value: by.read(msgspec.json.encode(value)))

    def _stand_in(self, name: str, read: Read) -> type[object]:
        made = StandIn(name, (), {})
        self.readers[made] = read
        return made

    def _is_for_pydantic(self, kind: object) -> bool:
        """Whether the decoder would not read this as pydantic does, or not at all."""
        if get_origin(kind) in _UNIONS:
            return self._is_torn(get_args(kind))
        return isinstance(kind, type) and is_model(kind) and _is_written(kind)

    def _is_torn(self, members: tuple[object, ...]) -> bool:
        """Whether a union has a member that only a hook reads, and another: the decoder does not
        know which of them to ask."""
        values = [each for each in members if each is not type(None)]
        return len(values) > 1 and any(map(self._is_hooked, values))

    def _is_hooked(self, kind: object) -> bool:
        inner: object = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        of = get_origin(inner) or inner
        return isinstance(of, type) and self.is_known(of)

    def _require_asked(self, record: type[object], inside: list[object]) -> None:
        """Inside a record no hook is asked about what encoder and decoder know."""
        for each in inside:
            if isinstance(each, type) and each in self._hooks and _is_written(each):
                raise TypeError(
                    f"{record.__name__} has a field of type {each.__name__}, and inside records"
                    f" the TypeHook of {each.__name__} is not used; add one for {record.__name__}"
                )

    def _is_record(self, kind: type[object]) -> bool:
        return (is_typeddict(kind) or _has_fields(kind)) and kind not in self._hooks

    def _inside(self, kind: object, seen: set[type[object]]) -> Iterator[object]:
        """Every annotation inside, its own and those of the fields of records."""
        yield kind
        of = get_origin(kind) or kind
        if isinstance(of, type) and self._is_record(of) and of not in seen:
            seen.add(of)
            for each in _field_kinds(of):
                yield from self._inside(each, seen)
        for each in get_args(kind) if of is not Literal else ():
            yield from self._inside(each, seen)


def _are_same(found: tuple[object, ...], args: tuple[object, ...]) -> bool:
    return all(map(operator.is_, found, args))


def _meant(kind: object) -> object:
    found: object = getattr(kind, "__supertype__", None)
    return found or getattr(kind, "__value__", None)


def _has_fields(kind: type[object]) -> bool:
    """Whether its values are written field by field, by the encoder."""
    is_named_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return is_named_tuple or dataclasses.is_dataclass(kind) or _is_foreign(kind)


def _is_foreign(kind: type[object]) -> bool:
    """Whether it is a record that pydantic does not know."""
    return hasattr(kind, "__attrs_attrs__") or issubclass(kind, msgspec.Struct)


def _is_written(kind: type[object]) -> bool:
    """Whether the encoder writes its values without asking a hook."""
    return _has_fields(kind) or issubclass(kind, _WRITTEN)


def _field_kinds(record: type[object]) -> list[object]:
    try:
        return list(get_type_hints(record, include_extras=True).values())
    except Exception:
        # Annotations are the user's expressions; the decoder tells what is wrong with them.
        return []
