"""Whether a value comes back as it went in: the same type, and nothing lost.

JSON has few types. What it cannot say (a set, a date, a record, a number that is not finite) would
arrive as something else without a word; only an annotation says what to make of it again. So what
was written is read as it will be read later, and compared. Where an annotation names the type, the
plain form of it (a dict for a dataclass, a list for a tuple, text for a date) may be given as well.
Of a type with a hook, what its hook writes is compared: only the hook knows what belongs to it.

Nothing is encoded or decoded here.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import Enum
from typing import NamedTuple

from flowfabric.worker import pydantic_values
from flowfabric.worker.conversion import Conversion
from flowfabric.worker.parts import leaves, parts
from flowfabric.worker.shapes import NO_HOOKS, Shape

# JSON has these: what is exactly of such a type arrives as it is, if its type does.
SCALARS = frozenset({int, float, str, bool, type(None)})

_PLAIN = SCALARS | {list, dict}
_BYTES = (bytes, bytearray, memoryview)
_SETS = (set, frozenset)
_SEQUENCES = (list, tuple)
_LISTED = (list, tuple, set, frozenset)
_LOST = object()


class Difference(NamedTuple):
    """Where a value would not come back as it went in, and how."""

    path: str
    problem: str
    hint: str = "annotate it with its type, or use JSON values"


def difference(
    given: object, back: object, shape: Shape, path: str, *, conversion: Conversion = NO_HOOKS
) -> Difference | None:
    """None when the value has come back as it went in, or as its annotation says."""
    kind = type(given)
    if kind is type(back) and kind in SCALARS:
        return None
    if (shape.is_compared or _is_plain(given)) and _equal(given, back):
        return None
    return _Look(shape.is_declared, conversion).at(given, back, path)


def _equal(given: object, back: object) -> bool:
    """Types of the user's may be compared in ways of their own."""
    try:
        return bool(given == back)
    except Exception:
        return False


def _is_plain(value: object) -> bool:
    """Whether it is made of what JSON has, and of nothing that is only equal to it."""
    level: list[object] = [value]
    while not SCALARS.issuperset(kinds := set(map(type, level))):
        if not _PLAIN.issuperset(kinds):
            return False
        # All that these hold, without a step of ours for each: a loop takes several times as long.
        level = gc.get_referents(*level)
    return True


def endless(value: object, path: str, conversion: Conversion = NO_HOOKS) -> Difference | None:
    """The first number in it that is not finite."""
    for place, leaf in leaves(conversion.plain(value), path):
        if isinstance(leaf, float) and leaf - leaf != 0:
            return _not_finite(place, leaf)
    return None


class _Look:
    """Compares part by part. `is_declared`: an annotation says what every part is to be."""

    def __init__(self, is_declared: bool, conversion: Conversion) -> None:
        self._is_declared = is_declared
        self._conversion = conversion

    def at(self, given: object, back: object, path: str) -> Difference | None:
        if isinstance(given, float) and back is None:
            return _not_finite(path, given)
        if type(given) is type(back) or self._may_become(given, back):
            return self._inside(given, back, path)
        return Difference(path, f"is {_a(given)} and would arrive as {_a(back)}")

    def _may_become(self, given: object, back: object) -> bool:
        """Whether what arrives is what the annotation makes of the given value's plain form."""
        if pydantic_values.is_model(type(back)) or self._conversion.has_hook(type(back)):
            return type(given) in _PLAIN
        if isinstance(back, Enum):
            return not isinstance(given, Enum)
        if isinstance(given, bool | None) or isinstance(back, bool | None):
            return False
        if type(given) in (int, float):
            return isinstance(back, int | float | Decimal)
        if type(given) is str:
            return not isinstance(back, (*_BYTES, *_LISTED, dict))
        if parts(back) is not None:
            return type(given) is dict or type(given) in _SEQUENCES
        if type(given) is list:
            return isinstance(back, _LISTED)
        return self._is_declared and _is_kin(given, back)

    def _inside(self, given: object, back: object, path: str) -> Difference | None:
        if self._conversion.has_hook(type(back)):
            return self._hooked(given, back, path)
        if pydantic_values.is_model(type(back)) and type(given) is not type(back):
            return self._unvalidated(given, back, path)
        known = parts(back)
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
            is_same = _equal(given, back) or (type(given) is str and not isinstance(back, str))
        # Inside of models there are types that say nothing about what is the same.
        if is_same or (type(given) is type(back) and type(given).__eq__ is object.__eq__):
            return None
        return Difference(path, _changed(given, back))

    def _hooked(self, given: object, back: object, path: str) -> Difference | None:
        found = endless(given, path, self._conversion)
        if found is not None or type(given) is not type(back):
            return found
        ours, theirs = map(self._conversion.encoded, (given, back))
        if ours == theirs:
            return None
        problem = f"{_changed(given, back)}, by its TypeHook"
        return Difference(path, problem, "decode must restore the value that encode was given")

    def _unvalidated(self, given: object, back: object, path: str) -> Difference | None:
        """Of a model in its plain form: its validators decide what a value becomes, but nothing
        may be lost."""
        if isinstance(given, float) and back is None:
            return _not_finite(path, given)
        if parts(given) is not None:
            return self.at(given, back, path)
        back = pydantic_values.content(back)
        if isinstance(given, list | tuple) and isinstance(back, list | tuple):
            pairs = enumerate(zip(given, back, strict=False))
            found = (self._unvalidated(*pair, f"{path}[{place}]") for place, pair in pairs)
            return next(filter(None, found), None)
        if not isinstance(given, dict):
            return None
        known = parts(back) or back
        return self._keys(given, back, known, path) if isinstance(known, dict) else None

    def _keys(
        self, given: Mapping[str, object], back: object, known: Mapping[str, object], path: str
    ) -> Difference | None:
        """`known`: what arrives, under one of the names that its model has for it."""
        names = pydantic_values.keys(type(back)) | set(known)
        for key, value in given.items():
            place = f"{path}.{key}"
            if key not in names:
                return _lost(place)
            found = self._unvalidated(value, known[key], place) if key in known else None
            if found is not None:
                return found
        return None

    def _fields(self, given: object, known: Mapping[str, object], path: str) -> Difference | None:
        """Of a record, given as one or in its plain form; what is missing there has a default."""
        own = parts(given)
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
    return None if is_same else Difference(path, "has values that would change")


def _size(listed: object) -> int:
    return len(listed) if isinstance(listed, list | tuple) else 0


def _changed(given: object, back: object) -> str:
    ours, theirs = repr(given), repr(back)
    other = theirs if ours != theirs else f"another {type(back).__name__}"
    return f"is {ours} and would arrive as {other}"


def _lost(path: str) -> Difference:
    return Difference(path, "would be lost", "use only keys of the annotated type")


def _not_finite(path: str, number: float) -> Difference:
    problem = f"is {number}, which cannot be stored: JSON has finite numbers only"
    return Difference(path, problem, "use None or a text instead")


def _is_kin(given: object, back: object) -> bool:
    """Whether a declared type takes the place of one that holds the same."""
    if isinstance(given, _LISTED) and isinstance(back, _LISTED):
        return parts(given) is None
    if parts(given) is not None:
        return False
    return isinstance(given, type(back)) or (isinstance(given, _BYTES) and isinstance(back, _BYTES))


def _a(value: object) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"
