"""The table of docs/reference/values.md as data: each type, how it is stored, and values of it.

`tests/docs/test_values.py` compares the table with it, `test_travelling.py` sends every value.
No test lives here.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Literal, NamedTuple, NewType, TypedDict
from uuid import UUID

import attrs
import msgspec
import pydantic
from pydantic import BaseModel, Field, HttpUrl, RootModel
from pydantic.dataclasses import dataclass as model_dataclass

from flowfabric import TypeHook

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2)))
TRAVELS, REFUSED = "travels", "refused"


@dataclass
class Box:
    size: int
    made: date = date(2030, 1, 1)


@attrs.define
class Bag:
    size: int


class Pair(NamedTuple):
    a: int
    b: str


class Row(TypedDict):
    id: int


class Tagged(msgspec.Struct, rename="camel", tag=True):
    first_name: str


class Colour(Enum):
    RED = "red"


class Word(StrEnum):
    GO = "go"


class Level(IntEnum):
    LOW = 1


class Customer(BaseModel):
    name: str
    since: date | None = None


class Order(BaseModel):
    id: int
    amount: float = Field(alias="sum")
    customer: Customer | None = None


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


class Names(RootModel[list[str]]):
    pass


@model_dataclass
class Limit:
    most: int = pydantic.Field(gt=0)


@dataclass
class Parcel:
    """What is not pydantic's may hold what is."""

    order: Order
    pet: Cat | Dog
    limit: Limit | None = None


class Money:
    """A class like any other; it says nothing about what is the same."""

    def __init__(self, cents: int, currency: str) -> None:
        self.cents = cents
        self.currency = currency

    def __repr__(self) -> str:
        return f"Money({self.cents}, {self.currency!r})"

    @classmethod
    def parse(cls, text: str) -> Money:
        cents, currency = text.split(" ")
        return cls(int(cents), currency)

    def __str__(self) -> str:
        return f"{self.cents} {self.currency}"


class Float64(float):
    """As the scalars of numeric libraries: a number, and more than that."""


class Array:
    """As the arrays of numeric libraries: compared element by element."""

    def __init__(self, *values: float) -> None:
        self.values = values

    def __repr__(self) -> str:
        return f"Array{self.values}"

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Point:
    x: int
    y: int


HOOKS = (
    TypeHook(Money, encode=str, decode=Money.parse),
    TypeHook(Float64, encode=float, decode=Float64),
    TypeHook(Array, encode=lambda array: list(array.values), decode=lambda v: Array(*v)),
    TypeHook(
        Point, encode=lambda p: f"{p.x}/{p.y}", decode=lambda t: Point(*map(int, t.split("/")))
    ),
)


class Strange:
    """A class that has no hook."""


class Case(NamedTuple):
    kind: object
    value: object
    stored: str


class Line(NamedTuple):
    """One line of the table. Without cases it is refused, also where it is annotated."""

    types: str
    stored: str
    alone: str
    cases: tuple[Case, ...] = ()
    refused: tuple[tuple[object, object], ...] = ()


UserId = NewType("UserId", int)
Small = Annotated[int, msgspec.Meta(le=9)]
Pet = Annotated[Cat | Dog, Field(discriminator="kind")]

LINES = (
    Line(
        "`None`, `bool`, `int`, `float`, `str`",
        "as it is",
        TRAVELS,
        (
            Case(type(None), None, "null"),
            Case(bool, True, "true"),
            Case(int, 2**70, str(2**70)),
            Case(float, 2.5, "2.5"),
            Case(str, "ä", '"ä"'),
        ),
    ),
    Line(
        "`list`; `dict` whose keys are `str`; `TypedDict`",
        "array, object",
        TRAVELS,
        (
            Case(list[int], [1, 2], "[1,2]"),
            Case(dict[str, int], {"a": 1}, '{"a":1}'),
            Case(Row, {"id": 1}, '{"id":1}'),
        ),
    ),
    Line(
        "`nan`, `inf`",
        "refused: use `None`, or a text",
        REFUSED,
        refused=((float, float("nan")), (list[float], [1.0, float("inf")])),
    ),
    Line(
        "`tuple`, `set`, `frozenset`, named tuples",
        "array",
        REFUSED,
        (
            Case(tuple[int, str], (1, "x"), '[1,"x"]'),
            Case(set[int], {1}, "[1]"),
            Case(frozenset[int], frozenset({1}), "[1]"),
            Case(Pair, Pair(1, "x"), '[1,"x"]'),
        ),
    ),
    Line(
        "`dict` whose keys are numbers, dates, ids or enums",
        "object, each key as text",
        REFUSED,
        (
            Case(dict[int, str], {1: "x"}, '{"1":"x"}'),
            Case(dict[date, int], {date(2030, 1, 1): 1}, '{"2030-01-01":1}'),
            Case(dict[UUID, int], {UUID(int=5): 1}, f'{{"{UUID(int=5)}":1}}'),
            Case(dict[Colour, int], {Colour.RED: 1}, '{"red":1}'),
        ),
    ),
    Line(
        "`datetime`, `date`, `time`",
        "ISO 8601 text; of a time zone the offset is kept, not the name",
        REFUSED,
        (
            Case(datetime, NOW, '"2030-01-02T03:04:05+02:00"'),
            Case(datetime, NOW.astimezone(UTC), '"2030-01-02T01:04:05Z"'),
            Case(date, date(2030, 1, 2), '"2030-01-02"'),
            Case(time, time(3, 4), '"03:04:00"'),
        ),
    ),
    Line(
        "`timedelta`",
        "ISO 8601 duration",
        REFUSED,
        (Case(timedelta, timedelta(hours=25), '"P1DT3600S"'),),
    ),
    Line(
        "`UUID`, `Decimal`",
        "text",
        REFUSED,
        (Case(UUID, UUID(int=5), f'"{UUID(int=5)}"'), Case(Decimal, Decimal("1.10"), '"1.10"')),
    ),
    Line(
        "`bytes`, `bytearray`",
        "base64 text",
        REFUSED,
        (Case(bytes, b"\0\xff", '"AP8="'), Case(bytearray, bytearray(b"x"), '"eA=="')),
    ),
    Line(
        "enums",
        "the value of the member",
        REFUSED,
        (
            Case(Colour, Colour.RED, '"red"'),
            Case(Word, Word.GO, '"go"'),
            Case(Level, Level.LOW, "1"),
        ),
    ),
    Line(
        "dataclasses, attrs classes",
        "object, by the names of the fields",
        REFUSED,
        (
            Case(Box, Box(3), '{"size":3,"made":"2030-01-01"}'),
            Case(Bag, Bag(3), '{"size":3}'),
        ),
    ),
    Line(
        "`msgspec.Struct`",
        "object or array, as its options say",
        REFUSED,
        (Case(Tagged, Tagged("Ada"), '{"type":"Tagged","firstName":"Ada"}'),),
    ),
    Line(
        "pydantic models and dataclasses",
        "object, by the names of the fields; read and validated by pydantic",
        REFUSED,
        (
            Case(
                Order,
                Order(id=1, sum=9.5, customer=Customer(name="Ada")),
                '{"id":1,"amount":9.5,"customer":{"name":"Ada","since":null}}',
            ),
            Case(Names, Names(["a"]), '["a"]'),
            Case(Limit, Limit(3), '{"most":3}'),
        ),
    ),
    Line(
        "types of pydantic's, such as `HttpUrl`",
        "as pydantic writes them",
        REFUSED,
        (Case(HttpUrl, HttpUrl("http://example.org/"), '"http://example.org/"'),),
    ),
    Line(
        "a union with models in it",
        "as its member; pydantic chooses it again, by the `discriminator` if there is one",
        REFUSED,
        (
            Case(Cat | Dog, Dog(name="Rex"), '{"kind":"dog","name":"Rex"}'),
            Case(Pet, Cat(lives=7), '{"kind":"cat","lives":7}'),
            Case(
                Parcel,
                Parcel(Order(id=1, sum=2), Dog(name="Rex"), Limit(1)),
                '{"order":{"id":1,"amount":2.0,"customer":null},"pet":{"kind":"dog","name":"Rex"},'
                '"limit":{"most":1}}',
            ),
        ),
    ),
    Line(
        "any other class with a `TypeHook`",
        "what its `encode` returns",
        REFUSED,
        (
            Case(Money, Money(5, "EUR"), '"5 EUR"'),
            Case(Float64, Float64(2.5), "2.5"),
            Case(Array, Array(1.5, 2.0), "[1.5,2.0]"),
            Case(Point, Point(1, 2), '"1/2"'),
        ),
    ),
    Line(
        "any other class",
        "refused: register a `TypeHook`",
        REFUSED,
        refused=((Strange, Strange()), (list[Strange], [Strange()])),
    ),
)

CASES = {f"{line.types}: {case.value!r}": (line, case) for line in LINES for case in line.cases}
# Names of types stand for what they mean.
NAMED = (Case(UserId, UserId(7), "7"), Case(Small, 7, "7"), Case(Literal["a"], "a", '"a"'))


def is_same(one: object, other: object) -> bool:
    """Also for what cannot be compared."""
    return type(one) is type(other) and repr(one) == repr(other)


def table() -> list[str]:
    """The lines of the table as the page has them."""
    head = ["| type | stored as JSON | without annotation |", "|---|---|---|"]
    return head + [f"| {line.types} | {line.stored} | {line.alone} |" for line in LINES]


def holder(kind: object) -> type[object]:
    """A dataclass with a field of this type."""
    return dataclasses.make_dataclass("Holder", [("held", kind)])
