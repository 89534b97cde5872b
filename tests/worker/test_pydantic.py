"""Pydantic models: validated where they are given, whole where they arrive, imported when used."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import pydantic
import pytest
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    RootModel,
    SecretStr,
)
from pydantic.dataclasses import dataclass as model_dataclass

from flowfabric.errors import InvalidInput, MissingExtra
from flowfabric.worker.conversion import Conversion
from flowfabric.worker.handler import Handler
from tests.worker.travelling import Customer, Dog, Limit, Names, Order, Pet

T = TypeVar("T")
NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Vip(Customer):
    level: int = 1


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    at: datetime
    parts: tuple[int, ...] = ()


class Trimmed(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True)
    name: str


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class Aliased(BaseModel):
    a: int = Field(validation_alias="one", serialization_alias="uno")
    b: int = Field(2, validation_alias=AliasChoices("two", AliasPath("deep", 0)))


class Hidden(BaseModel):
    kept: int = 0
    left_out: Annotated[int, Field(exclude=True)] = 0


class Secret(BaseModel):
    word: SecretStr


class Page(BaseModel, Generic[T]):
    items: list[T]


class Tree(BaseModel):
    children: list[Tree] = []


class Maybe(BaseModel):
    x: float | None = None


class Same(BaseModel):
    id: int
    sum: int = 0


class Marker:
    """Equal to nothing but itself."""


class Marked(BaseModel):
    mark: Annotated[
        Marker, PlainValidator(lambda value: Marker()), PlainSerializer(lambda mark: "mark")
    ]


class Orders(RootModel[list[Order]]):
    pass


def handler(kind: object) -> Handler:
    def take(v: Any) -> Any: ...

    take.__annotations__ = {"v": kind, "return": kind}
    return Handler("take", take, Conversion())


def arrived(kind: object, value: object) -> object:
    made = handler(kind)
    return made.arguments.decode(made.encode_call((value,), {}))["v"]


COME_BACK: dict[str, tuple[object, object]] = {
    "a strict model": (Strict, Strict(at=NOW, parts=(1, 2))),
    "extra fields": (Open, Open.model_validate({"more": [1]})),
    "aliases": (Aliased, Aliased.model_validate({"one": 1, "two": 5})),
    "a generic model": (Page[Order], Page[Order](items=[Order(id=1, sum=1)])),
    "a model in itself": (Tree, Tree(children=[Tree()])),
    "a field that is left out and says the same": (Hidden, Hidden(kept=1)),
}


@pytest.mark.parametrize("name", COME_BACK)
def test_a_model_comes_back(name: str) -> None:
    kind, value = COME_BACK[name]
    assert arrived(kind, value) == value


def test_of_a_field_that_cannot_be_compared_the_type_decides() -> None:
    back = arrived(Marked, Marked(mark=Marker()))
    assert isinstance(back, Marked)


PLAIN: dict[str, tuple[object, object, object]] = {
    "by names": (Order, {"id": 1, "amount": 2}, Order(id=1, sum=2)),
    "by aliases": (Order, {"id": 1, "sum": "2"}, Order(id=1, sum=2)),
    "by choices": (Aliased, {"one": 1, "deep": [7]}, Aliased.model_validate({"one": 1, "two": 7})),
    "as validators change it": (Trimmed, {"name": " Ada "}, Trimmed(name="Ada")),
    "a model inside": (
        Order,
        {"id": 1, "sum": 2, "customer": Customer(name="x")},
        Order(id=1, sum=2, customer=Customer(name="x")),
    ),
    "a list for a root model": (Names, ["a"], Names(["a"])),
    "extra fields": (Open, {"more": 1}, Open.model_validate({"more": 1})),
    "a pydantic dataclass": (Limit, {"most": 3}, Limit(3)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_the_plain_form_of_a_model_arrives_as_the_model(name: str) -> None:
    kind, given, wanted = PLAIN[name]
    assert arrived(kind, given) == wanted


REFUSED: dict[str, tuple[object, object, tuple[str, str]]] = {
    "a wrong field": (Order, {"id": "x", "sum": 1}, ("v.id", "valid integer")),
    "deep inside": (
        dict[str, list[Order]],
        {"a": [{"id": 1, "sum": 1, "customer": {"name": 5}}]},
        ("v[...][0].customer.name", "valid string"),
    ),
    "several fields": (Order, {}, ("v.id", "id: Field required; sum: Field required")),
    "no object": (Order, 5, ("v", "should be an object")),
    "a constraint": (list[Limit], [{"most": 0}], ("v[0].most", "greater than 0")),
    "a key that no field has": (Order, {"id": 1, "sum": 1, "typo": 1}, ("v.typo", "be lost")),
    "a key that no field has, inside": (
        Orders,
        [{"id": 1, "sum": 1, "customer": {"name": "x", "typo": 1}}],
        ("v[0].customer.typo", "be lost"),
    ),
    "a subclass": (Customer, Vip(name="x"), ("v", "is a Vip and would arrive as a Customer")),
    "a subclass in a model": (
        Order,
        Order(id=1, sum=1, customer=Vip(name="x")),
        ("v.customer", "is a Vip"),
    ),
    "a subclass in a plain form": (
        Order,
        {"id": 1, "sum": 1, "customer": Vip(name="x")},
        ("v.customer", "is a Vip"),
    ),
    "another model": (Same, Order(id=1, sum=1), ("v", "is an Order and would arrive as a Same")),
    "no annotation": (Any, Order(id=1, sum=1), ("v", "is an Order and would arrive as a dict")),
    "no number": (Maybe, Maybe(x=float("nan")), ("v.x", "is nan")),
    "no number in the plain form": (Maybe, {"x": float("nan")}, ("v.x", "is nan")),
    "a field that is left out": (Hidden, Hidden(left_out=5), ("v.left_out", "is 5")),
    "a secret": (Secret, Secret(word=SecretStr("x")), ("v.word", "another SecretStr")),
    "a member that another hides": (
        Same | Order,
        Same.model_construct(id=1, sum=2.5),
        ("v", "is a Same and would arrive as an Order"),
    ),
    "a wrong field of the member that is named": (
        Pet,
        {"kind": "dog"},
        ("v.dog.name", "dog.name: Field required - at"),
    ),
    "a wrong member": (Dog | Order, {"a": 1}, ("v.Dog.name", "Field required")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_or_would_be_lost_is_refused_with_its_path(name: str) -> None:
    kind, value, (path, told) = REFUSED[name]
    with pytest.raises(InvalidInput) as refused:
        handler(kind).encode_call((value,), {})
    assert (refused.value.field, "'take'" in refused.value.message) == (path, True)
    assert told in refused.value.message
    assert refused.value.hint


def test_a_result_that_does_not_validate_names_the_task_and_the_place() -> None:
    with pytest.raises(InvalidInput, match="'take', which returns Order: expected Order") as bad:
        handler(Order).result.encode({"id": 1})
    assert bad.value.field == "result.sum"


def test_a_model_that_cannot_be_written_is_refused() -> None:
    class Raw(BaseModel):
        data: bytes

    with pytest.raises(InvalidInput, match=r"Raw: .*utf-8") as refused:
        handler(list[Raw]).encode_call(([Raw(data=b"\xff")],), {})
    assert refused.value.field == "v[0]"


@model_dataclass(config=ConfigDict(ser_json_timedelta="float"))
class Span:
    length: timedelta


def test_a_pydantic_dataclass_is_written_by_pydantic() -> None:
    made = handler(dict[str, list[Span]])
    payload = made.encode_call(({"a": [Span(timedelta(minutes=1))]},), {})
    assert payload == b'{"v":{"a":[{"length":60.0}]}}'


def test_a_default_may_be_a_model() -> None:
    def work(a: Order | None = None, b: Limit | None = None, c: Dog | Order | None = None) -> None:
        """Three that may be missing."""

    made = Handler("work", work)
    given = {"a": Order(id=1, sum=1), "b": Limit(1), "c": Dog(name="x")}
    assert made.arguments.decode(made.encode_call((), {})) == {}
    assert made.arguments.decode(made.encode_call((), {"b": None})) == {"b": None}
    assert made.arguments.decode(made.encode_call((), given)) == given


def test_a_record_that_pydantic_does_not_know_cannot_hold_what_only_pydantic_reads() -> None:
    class Holder(msgspec.Struct):
        limit: Limit

    with pytest.raises(InvalidInput, match="Holder has a field that only pydantic reads"):
        handler(Holder)


def test_a_recursive_dataclass_with_models_comes_back() -> None:
    value = Nested(Dog(name="a"), Nested(Order(id=1, sum=1)))
    assert arrived(Nested, value) == value


@dataclass
class Nested:
    held: Dog | Order
    inside: Nested | None = None


@pytest.mark.parametrize(("version", "told"), [("2.10.6", "too old"), (None, "missing")])
def test_a_pydantic_that_cannot_be_used_is_told(
    version: str | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if version is None:
        monkeypatch.setitem(sys.modules, "pydantic", None)
    else:
        monkeypatch.setattr(pydantic, "VERSION", version)
    with pytest.raises(MissingExtra, match=told) as refused:
        handler(Dog).encode_call((Dog(name="Rex"),), {})
    assert "flowfabric[pydantic]" in str(refused.value.hint)


def test_pydantic_is_imported_by_the_program_that_uses_it_only() -> None:
    code = (
        "import sys, flowfabric as ff\n"
        "app = ff.App('memory://')\n"
        "task = app.task(name='add')(lambda a, b=None: a)\n"
        "task.bind({'x': [1]})\n"
        "sys.exit('pydantic' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
