"""Whether a value comes back as it went in: the same type, and nothing lost.

JSON has few types. What it cannot say (a set, a date, a record, a number that is not finite) would
arrive as something else without a word; only an annotation says what to make of it again. So what
was written is read as it will be read later, and compared. Where an annotation names the type, the
plain form of it (a dict for a dataclass, a list for a tuple, text for a date) may be given as well.

Nothing is encoded or decoded here.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from typing import NamedTuple

import msgspec
from msgspec import inspect

# JSON has these: what is exactly of such a type arrives as it is, if its type does.
SCALARS = frozenset({int, float, str, bool, type(None)})

_PLAIN = SCALARS | {list, dict}
_BYTES = (bytes, bytearray, memoryview)
_SETS = (set, frozenset)
_SEQUENCES = (list, tuple)
_LISTED = (list, tuple, set, frozenset)
_LOST = object()
# What is of such a type is equal only to what arrives as well as it went.
_COMPARED = (
    inspect.NoneType,
    inspect.BoolType,
    inspect.IntType,
    inspect.FloatType,
    inspect.StrType,
    inspect.BytesType,
    inspect.DateTimeType,
    inspect.DateType,
    inspect.TimeType,
    inspect.TimeDeltaType,
    inspect.UUIDType,
    inspect.DecimalType,
    inspect.LiteralType,
    inspect.ListType,
    inspect.SetType,
    inspect.FrozenSetType,
    inspect.TupleType,
    inspect.VarTupleType,
    inspect.DictType,
    inspect.UnionType,
)
_IN_JSON = (
    inspect.NoneType,
    inspect.BoolType,
    inspect.IntType,
    inspect.FloatType,
    inspect.StrType,
    inspect.LiteralType,
    inspect.ListType,
    inspect.TypedDictType,
    inspect.UnionType,
    # A value that no annotation describes is checked to be plain before it is stored.
    inspect.AnyType,
    inspect.CustomType,
)
_UNKNOWN = (inspect.AnyType, inspect.RawType, inspect.CustomType)


class Difference(NamedTuple):
    """Where a value would not come back as it went in, and how."""

    path: str
    problem: str
    hint: str = "annotate it with the type that it has, or use JSON values"


class Shape(NamedTuple):
    """What an annotation says: about everything inside, in types that compare exactly, in types
    that need no annotation."""

    is_declared: bool
    is_compared: bool
    is_plain: bool


def shape_of(kind: object) -> Shape:
    found = list(_types(inspect.type_info(kind), set()))
    return Shape(
        is_declared=not any(isinstance(each, _UNKNOWN) for each in found),
        is_compared=all(isinstance(each, _COMPARED) for each in found),
        is_plain=all(map(_needs_no_annotation, found)),
    )


def _needs_no_annotation(info: inspect.Type) -> bool:
    if isinstance(info, inspect.DictType):
        return isinstance(info.key_type, inspect.StrType | inspect.AnyType)
    return isinstance(info, _IN_JSON)


def difference(given: object, back: object, shape: Shape, path: str) -> Difference | None:
    """None when the value has come back as it went in, or as its annotation says."""
    kind = type(given)
    if kind is type(back) and kind in SCALARS:
        return None
    if (shape.is_compared or _is_plain(given)) and given == back:
        return None
    return _Look(shape.is_declared).at(given, back, path)


def _is_plain(value: object) -> bool:
    """Whether it is made of what JSON has, and of nothing that is only equal to it."""
    level: list[object] = [value]
    while not SCALARS.issuperset(kinds := set(map(type, level))):
        if not _PLAIN.issuperset(kinds):
            return False
        # All that these hold, without a step of ours for each: a loop takes several times as long.
        level = gc.get_referents(*level)
    return True


def endless(value: object, path: str) -> Difference | None:
    """The first number in it that is not finite."""
    for place, leaf in _leaves(msgspec.to_builtins(value), path):
        if isinstance(leaf, float) and leaf - leaf != 0:
            return _not_finite(place, leaf)
    return None


class _Look:
    """Compares part by part. `is_declared`: an annotation says what every part is to be."""

    def __init__(self, is_declared: bool) -> None:
        self._is_declared = is_declared

    def at(self, given: object, back: object, path: str) -> Difference | None:
        if isinstance(given, float) and back is None:
            return _not_finite(path, given)
        if type(given) is type(back) or self._may_become(given, back):
            return self._inside(given, back, path)
        return Difference(path, f"is {_a(given)} and would arrive as {_a(back)}")

    def _may_become(self, given: object, back: object) -> bool:
        """Whether what arrives is what the annotation makes of the given value's plain form."""
        if isinstance(back, Enum):
            return not isinstance(given, Enum)
        if isinstance(given, bool | None) or isinstance(back, bool | None):
            return False
        if type(given) in (int, float):
            return isinstance(back, int | float | Decimal)
        if type(given) is str:
            return not isinstance(back, (*_BYTES, *_LISTED, dict))
        if _parts(back) is not None:
            return type(given) is dict or type(given) in _SEQUENCES
        if type(given) is list:
            return isinstance(back, _LISTED)
        return self._is_declared and _is_kin(given, back)

    def _inside(self, given: object, back: object, path: str) -> Difference | None:
        known = _parts(back)
        if known is not None:
            return self._fields(given, known, path)
        if isinstance(given, dict) and isinstance(back, dict):
            return self._items(given, back, path)
        if isinstance(back, _SETS):
            return _members(given, back, path)
        if isinstance(given, _LISTED) and isinstance(back, _SEQUENCES):
            return self._each(list(given), back, path)
        if isinstance(back, Enum):
            is_same = given is back or given == back.value
        else:
            is_same = given == back or (type(given) is str and not isinstance(back, str))
        return None if is_same else Difference(path, f"is {given!r} and would arrive as {back!r}")

    def _fields(self, given: object, known: Mapping[str, object], path: str) -> Difference | None:
        """Of a record, given as one or in its plain form; what is missing there has a default."""
        own = _parts(given)
        if own is None and isinstance(given, tuple | list):
            return self._each(given, list(known.values())[: len(given)], path)
        if own is None and isinstance(given, dict):
            own = given
        for name, value in (own or {}).items():
            place = f"{path}.{name}"
            found = self.at(value, known[name], place) if name in known else _lost(place)
            if found is not None:
                return found
        return None

    def _items(
        self, given: Mapping[object, object], back: Mapping[object, object], path: str
    ) -> Difference | None:
        """Keys arrive in the order that they have, and may be written in another form."""
        arrived = dict(zip(given, back, strict=False)) if len(given) == len(back) else {}
        ours = {key: key for key in back}
        for key, value in given.items():
            place = f"{path}.{key}"
            other = ours.get(key, arrived.get(key, _LOST))
            if other is _LOST:
                return _lost(place)
            found = self.at(key, other, place) or self.at(value, back[other], place)
            if found is not None:
                return found
        return None

    def _each(
        self, given: Sequence[object], back: Sequence[object], path: str
    ) -> Difference | None:
        if len(given) != len(back):
            return Difference(path, f"has {len(given)} values, of which {len(back)} would arrive")
        found = (
            self.at(each, other, f"{path}[{place}]")
            for place, (each, other) in enumerate(zip(given, back, strict=True))
        )
        return next(filter(None, found), None)


def _members(given: object, back: set[object] | frozenset[object], path: str) -> Difference | None:
    """Of a set, given as one or listed: each value of the list is then a member of its own."""
    is_same = given == back if isinstance(given, _SETS) else _size(given) == len(back)
    return None if is_same else Difference(path, "has values that would arrive as others")


def _size(listed: object) -> int:
    return len(listed) if isinstance(listed, list | tuple) else 0


def _lost(path: str) -> Difference:
    return Difference(path, "would be lost", "use keys of the annotated type, and only such")


def _not_finite(path: str, number: float) -> Difference:
    problem = f"is {number}, which cannot be stored: JSON has finite numbers only"
    return Difference(path, problem, "use None, or a text, in its place")


def _is_kin(given: object, back: object) -> bool:
    """Whether a declared type takes the place of one that holds the same."""
    if isinstance(given, _LISTED) and isinstance(back, _LISTED):
        return _parts(given) is None
    if _parts(given) is not None:
        return False
    return isinstance(given, type(back)) or (isinstance(given, _BYTES) and isinstance(back, _BYTES))


def _parts(value: object) -> dict[str, object] | None:
    """The fields of a record by the names that they are written with; None for anything else."""
    kind = type(value)
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        tag: dict[str, object] = {} if config.tag is None else {str(config.tag_field): config.tag}
        fields = msgspec.structs.fields(value)
        return tag | {each.encode_name: getattr(value, each.name, None) for each in fields}
    if dataclasses.is_dataclass(kind):
        names: Iterable[str] = (each.name for each in dataclasses.fields(kind))
    elif hasattr(kind, "__attrs_attrs__"):
        names = (each.name for each in kind.__attrs_attrs__)
    elif isinstance(value, tuple) and hasattr(kind, "_fields"):
        names = kind._fields
    else:
        return None
    return {name: getattr(value, name, None) for name in names}


def _types(info: inspect.Type, seen: set[int]) -> Iterable[inspect.Type]:
    """Every type inside; a type may contain itself."""
    if id(info) in seen:
        return
    seen.add(id(info))
    yield info
    for name in info.__struct_fields__:
        yield from _types_in(getattr(info, name), seen)


def _types_in(found: object, seen: set[int]) -> Iterable[inspect.Type]:
    if isinstance(found, inspect.Type):
        yield from _types(found, seen)
    elif isinstance(found, inspect.Field):
        yield from _types(found.type, seen)
    elif isinstance(found, tuple):
        for each in found:
            yield from _types_in(each, seen)


def _leaves(value: object, path: str) -> Iterable[tuple[str, object]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _leaves(each, f"{path}.{key}")
    elif isinstance(value, list):
        for place, each in enumerate(value):
            yield from _leaves(each, f"{path}[{place}]")
    else:
        yield path, value


def _a(value: object) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"
