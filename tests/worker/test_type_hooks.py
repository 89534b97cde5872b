"""TypeHooks: what can be hooked, and what is said when a hook fails or does not fit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from flowfabric import App, TypeHook
from flowfabric.errors import InvalidInput
from flowfabric.worker.conversion import Conversion
from flowfabric.worker.handler import Handler
from tests.worker.travelling import Money, Order, Point


def handler(kind: object, *hooks: TypeHook) -> Handler:
    def take(v: Any) -> Any: ...

    take.__annotations__ = {"v": kind, "return": kind}
    return Handler("take", take, Conversion(hooks))


def hook(**changes: Any) -> TypeHook:
    halves: dict[str, Any] = {"encode": str, "decode": Money.parse} | changes
    return TypeHook(Money, **halves)


@pytest.mark.parametrize("kind", [int, str, dict, bytes, type(None), object])
def test_a_builtin_type_cannot_be_hooked(kind: type[object]) -> None:
    with pytest.raises(InvalidInput, match=f"{kind.__name__} needs no TypeHook"):
        TypeHook(kind, encode=str, decode=str)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: TypeHook(cast(Any, "Money"), encode=str, decode=str), "needs a class"),
        (lambda: hook(encode=None), "encode of Money must be a function"),
        (lambda: hook(decode=5), "decode of Money must be a function"),
        (lambda: App("memory://", types=[hook(), hook()]), "Money has two TypeHooks"),
        (lambda: App("memory://", types=[cast(Any, Money)]), "expected a TypeHook"),
    ],
)
def test_a_wrong_hook_is_refused_where_it_is_made(make: Any, told: str) -> None:
    with pytest.raises(InvalidInput, match=told) as refused:
        make()
    assert refused.value.hint


def test_a_hook_that_cannot_encode_is_named_with_the_place() -> None:
    made = handler(dict[str, list[Money]], hook(encode=lambda money: 1 / 0))
    for call in (lambda: made.encode_call(({"a": [Money(1, "EUR")]},), {}), None):
        with pytest.raises(InvalidInput, match=r"TypeHook\(Money\).*ZeroDivisionError") as refused:
            call() if call else made.result.encode({"a": [Money(1, "EUR")]})
        assert refused.value.field in ("v.a[0]", "result.a[0]")


def test_a_hook_that_cannot_decode_is_named_with_the_place() -> None:
    made = handler(dict[str, list[Money]], hook())
    with pytest.raises(InvalidInput, match="Money cannot be read: ValueError") as refused:
        made.encode_call(({"a": ["5 EUR", "free"]},), {})
    assert refused.value.field == "v[...][1]"


def test_a_hook_whose_halves_do_not_fit_is_refused_when_a_value_is_written() -> None:
    made = handler(Money, hook(decode=lambda text: Money(0, "EUR")))
    with pytest.raises(InvalidInput, match=r"is Money\(5, 'EUR'\).*arrive as Money\(0") as refused:
        made.encode_call((Money(5, "EUR"),), {})
    assert refused.value.field == "v"


def test_what_a_hook_makes_of_numbers_without_end_is_refused() -> None:
    made = handler(Money, hook(encode=lambda money: [float("nan")], decode=lambda v: Money(1, "E")))
    with pytest.raises(InvalidInput, match="is nan") as refused:
        made.encode_call((Money(1, "E"),), {})
    assert refused.value.field == "v[0]"


def test_a_hook_may_write_what_has_a_hook_itself() -> None:
    class Purse:
        def __init__(self, *held: Money) -> None:
            self.held = held

    made = handler(
        Purse,
        hook(),
        TypeHook(
            Purse,
            encode=lambda purse: list(purse.held),
            decode=lambda held: Purse(*map(Money.parse, cast(Any, held))),
        ),
    )
    payload = made.encode_call((Purse(Money(1, "EUR")),), {})
    assert payload == b'{"v":["1 EUR"]}'
    (held,) = cast(Purse, made.arguments.decode(payload)["v"]).held
    assert str(held) == "1 EUR"


class Coin(Money):
    pass


def test_a_subclass_of_a_hooked_type_is_refused_where_its_class_would_be_lost() -> None:
    with pytest.raises(InvalidInput, match="is a Coin and would arrive as a Money"):
        handler(Money, hook()).encode_call((Coin(1, "EUR"),), {})


def test_a_type_whose_instances_are_of_a_subclass_can_be_hooked() -> None:
    made = handler(Path, TypeHook(Path, encode=str, decode=Path))
    assert made.arguments.decode(made.encode_call((Path("a/b"),), {})) == {"v": Path("a/b")}


def test_the_plain_form_of_a_hooked_type_is_taken_and_other_classes_are_not() -> None:
    made = handler(Money, hook())
    assert made.encode_call(("5 EUR",), {}) == b'{"v":"5 EUR"}'
    with pytest.raises(InvalidInput):
        made.encode_call((Path("5 EUR"),), {})


def test_a_model_can_be_hooked() -> None:
    short = TypeHook(Order, encode=lambda order: order.id, decode=lambda id: Order(id=id, sum=0))
    made = handler(Order, short)
    assert made.encode_call((Order(id=3, sum=0),), {}) == b'{"v":3}'


@pytest.mark.parametrize("value", [5, Money(5, "EUR"), None, "x"])
def test_a_union_with_a_hooked_type_takes_the_first_member_that_reads_it(value: object) -> None:
    made = handler(Money | int | str | None, hook())
    back = made.arguments.decode(made.encode_call((value,), {}))["v"]
    assert (type(back), repr(back)) == (type(value), repr(value))


def test_a_union_whose_members_cannot_be_told_apart_is_refused() -> None:
    with pytest.raises(InvalidInput, match="is a Money and would arrive as a str"):
        handler(str | Money, hook()).encode_call((Money(5, "EUR"),), {})


@dataclass
class Line:
    point: Point


def test_a_dataclass_with_a_hook_is_refused_inside_of_another() -> None:
    point = TypeHook(Point, encode=repr, decode=lambda text: Point(0, 0))
    with pytest.raises(InvalidInput, match="Line has a field of type Point"):
        handler(list[Line], point)


def test_without_a_hook_the_error_shows_how_to_register_one() -> None:
    made = handler(dict[str, Any])
    with pytest.raises(InvalidInput, match=r"App\(types=\[TypeHook\(Money") as refused:
        made.encode_call(({"a": {"b": Money(1, "EUR")}},), {})
    assert refused.value.field == "v.a.b"
