"""Values that come back as they went in, and those that would not: each is told with its place."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowfabric.errors import InvalidInput
from flowfabric.worker.codec import ResultCodec
from flowfabric.worker.faithful import Difference, difference
from flowfabric.worker.shapes import shape_of

NAN, INF = float("nan"), float("inf")
quick = settings(max_examples=50, deadline=None)


@dataclass
class Base:
    x: int
    note: str = ""


@dataclass
class Sub(Base):
    extra: int = 0


@dataclass(eq=False)
class Unequal:
    at: datetime
    parts: list[Base]


@dataclass
class Loose:
    inside: Any


@dataclass
class Counting:
    """Changes whenever it is made."""

    n: int

    def __post_init__(self) -> None:
        self.n += 1


@dataclass(frozen=True)
class Frozen:
    x: int


@dataclass(frozen=True)
class FrozenSub(Frozen):
    y: int = 0


@dataclass
class Hidden:
    """Is equal to every other of its kind."""

    value: Any = field(compare=False)


class Renamed(msgspec.Struct, rename="camel", tag=True):
    first_name: str
    age: int = 0


class Pair(NamedTuple):
    a: int
    b: int


class Row(TypedDict):
    id: int


class Colour(Enum):
    RED = "red"


class Word(StrEnum):
    GO = "go"


class Level(IntEnum):
    LOW = 1


NOW = datetime(2030, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)

COME_BACK: dict[str, tuple[object, object]] = {
    "plain values": (Any, {"a": [1, 2.5, None, True, "x", {"b": []}]}),
    "a huge number": (Any, 2**200),
    "minus nothing": (Any, -0.0),
    "a whole number for a float": (float, 5),
    "a set": (set[int], {1, 2}),
    "a set of records": (set[Frozen], {Frozen(1)}),
    "a tuple": (tuple[int, str], (1, "x")),
    "a named tuple": (Pair, Pair(1, 2)),
    "a moment": (datetime, NOW),
    "a moment elsewhere": (datetime, NOW.astimezone(timezone(timedelta(hours=2)))),
    "a moment without zone": (datetime, NOW.replace(tzinfo=None)),
    "a date or nothing": (date | None, date(2030, 1, 1)),
    "bytes": (bytes, b"\0\xff"),
    "an id": (UUID, UUID(int=5)),
    "a decimal": (Decimal, Decimal("1.10")),
    "a record": (Base, Base(1)),
    "a record that is never equal": (Unequal, Unequal(NOW, [Base(1)])),
    "a record with plain values": (Loose, Loose({"a": [1]})),
    "one of two records": (Frozen | None, Frozen(1)),
    "an enum": (Colour, Colour.RED),
    "a struct with other names": (Renamed, Renamed("Ada")),
    "keys that are numbers": (dict[int, str], {1: "x"}),
    "keys that are dates": (dict[date, Base], {date(2030, 1, 1): Base(1)}),
    "a typed dict": (Row, {"id": 1}),
    "a subclass where its values are asked for": (str, Word.GO),
    "a tuple where a sequence is asked for": (Sequence[int], (1, 2)),
    "a mapping": (Mapping[str, int], OrderedDict(a=1)),
    "a tuple in a record": (dict[str, Sequence[Base]], {"a": (Base(1),)}),
}

# The plain form of what the annotation says.
WRITTEN: dict[str, tuple[object, object]] = {
    "a dict for a record": (Base, {"x": 1}),
    "a dict for a struct": (Renamed, {"type": "Renamed", "firstName": "Ada"}),
    "a list for a tuple": (tuple[int, ...], [1, 2]),
    "a list for a set": (set[int], [1, 2]),
    "a list for a named tuple": (Pair, [1, 2]),
    "records in a list": (list[Base], [{"x": 1}, Base(2)]),
    "text for a moment": (datetime, "2030-01-02T03:04:05+00:00"),
    "text for an enum": (Colour, "red"),
    "text for keys": (dict[int, int], {"1": 2}),
    "a number for a decimal": (Decimal, 5),
}

DO_NOT: dict[str, tuple[object, object, tuple[str, str]]] = {
    "no number": (Any, NAN, ("v", "is nan")),
    "no end": (Any, INF, ("v", "is inf")),
    "no number inside": (Any, {"a": [1.0, -INF]}, ("v.a[1]", "is -inf")),
    "no number or nothing": (float | None, NAN, ("v", "is nan")),
    "no number in a record": (Loose, Loose(NAN), ("v.inside", "is nan")),
    "no number that is not compared": (Hidden, Hidden(NAN), ("v.value", "is nan")),
    "a set": (Any, {1}, ("v", "is a set and would arrive as a list")),
    "a tuple": (Any, (1, 2), ("v", "is a tuple and would arrive as a list")),
    "a tuple inside": (list[Any], [1, (1, 2)], ("v[1]", "is a tuple")),
    "a moment": (Any, NOW, ("v", "is a datetime and would arrive as a str")),
    "a moment inside": (dict[str, Any], {"at": NOW}, ("v.at", "is a datetime")),
    "a record": (Any, Base(1), ("v", "is a Base and would arrive as a dict")),
    "a record as an object": (object, Base(1), ("v", "is a Base")),
    "a record for a dict": (dict[str, Any], Base(1), ("v", "is a Base")),
    "bytes": (Any, b"x", ("v", "is a bytes")),
    "an id": (Any, UUID(int=5), ("v", "is an UUID")),
    "a decimal": (Any, Decimal("1.1"), ("v", "is a Decimal")),
    "an enum": (Any, Colour.RED, ("v", "is a Colour")),
    "an enum that is text": (Any, Word.GO, ("v", "is a Word")),
    "an enum that is a number": (Any, [Level.LOW], ("v[0]", "is a Level")),
    "an enum as a key": (Any, {Word.GO: 1}, ("v.go", "is a Word")),
    "a dict of another kind": (Any, OrderedDict(a=1), ("v", "is an OrderedDict")),
    "keys that are numbers": (Any, {1: 2}, ("v.1", "is an int and would arrive as a str")),
    "keys that become one": (Any, {1: 1, "1": 2}, ("v.1", "would be lost")),
    "a subclass": (Base, Sub(1, extra=2), ("v", "is a Sub and would arrive as a Base")),
    "a subclass inside": (list[Base], [Base(1), Sub(1)], ("v[1]", "is a Sub")),
    "a subclass in a set": (set[Frozen], {FrozenSub(1, 2)}, ("v", "would change")),
    "a subclass in a record": (Unequal, Unequal(NOW, [Sub(1)]), ("v.parts[0]", "is a Sub")),
    "a key that no field has": (Base, {"x": 1, "y": 2}, ("v.y", "would be lost")),
    "a key that no row has": (Row, {"id": 1, "y": 2}, ("v.y", "would be lost")),
    "a value twice for a set": (set[int], [1, 1], ("v", "would change")),
    "text for bytes": (bytes, "abcd", ("v", "is a str and would arrive as a bytes")),
    "a number that a float cannot hold": (float, 2**60 + 1, ("v", "would arrive as 1.15")),
    "what changes when it is made": (Counting, Counting(1), ("v.n", "is 2 and would arrive as 3")),
}


def judged(kind: object, value: object) -> Difference | None:
    body = msgspec.json.encode(value)
    back: object = msgspec.json.Decoder(kind).decode(body)
    return difference(value, back, shape_of(kind), "v")


@pytest.mark.parametrize("name", COME_BACK)
def test_what_comes_back_as_it_went_in_is_let_through(name: str) -> None:
    assert judged(*COME_BACK[name]) is None


@pytest.mark.parametrize("name", WRITTEN)
def test_the_plain_form_of_an_annotated_type_is_let_through(name: str) -> None:
    assert judged(*WRITTEN[name]) is None


@pytest.mark.parametrize("name", DO_NOT)
def test_what_would_arrive_as_something_else_is_told_with_its_place(name: str) -> None:
    kind, value, (path, told) = DO_NOT[name]
    found = judged(kind, value)
    assert found is not None
    assert found.path == path
    assert told in found.problem
    assert found.hint


_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(codec="utf-8")),
    st.sampled_from([NOW, b"x", Colour.RED, Word.GO, Level.LOW, Base(1), Pair(1, 2), Decimal(1)]),
)
_values = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text("ab"), st.integers(0, 3)), inner, max_size=3),
    ),
    max_leaves=8,
)


@quick
@given(value=_values)
def test_what_is_let_through_without_annotation_is_the_same(value: object) -> None:
    back = msgspec.json.decode(msgspec.json.encode(value))
    assert (judged(Any, value) is None) == (repr(value) == repr(back))


@pytest.mark.parametrize("value", [1, "x", None, True, 2.5, [1, None], {"a": {}}])
def test_a_plain_result_without_annotation_is_stored(value: object) -> None:
    codec = ResultCodec("work", {})
    assert codec.decode(codec.encode(value)) == value


WRONG: dict[str, tuple[object, object, tuple[str, str]]] = {
    "text": (int, "three", ("result", "expected int, got str")),
    "nothing": (int, None, ("result", "expected int, got NoneType")),
    "something": (type(None), 5, ("result", "expected NoneType, got int")),
    "a list of others": (list[int], [1, "2"], ("result[1]", "expected list[int], got list")),
    "no number": (float, NAN, ("result", "is nan")),
    "no number in a list": (list[float], [0.5, INF], ("result[1]", "is inf")),
    "a number, perhaps": (float | None, NAN, ("result", "is nan")),
    "a subclass": (Base, Sub(1), ("result", "is a Sub and would arrive as a Base")),
    "text that is no bytes": (bytes, "abcd", ("result", "is a str")),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_result_names_the_task_and_both_types(name: str) -> None:
    kind, value, (path, told) = WRONG[name]
    with pytest.raises(InvalidInput) as refused:
        ResultCodec("work", {"return": kind}).encode(value)
    assert refused.value.field == path
    assert "'work'" in refused.value.message
    assert told in refused.value.message
    assert refused.value.hint
