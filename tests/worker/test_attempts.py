"""The text of a failure, and handlers as the worker sees them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from typing import Annotated, Any, Literal, NewType, TypedDict

import msgspec
import pytest

from flowfabric.errors import InvalidInput
from flowfabric.worker.handler import Handler
from flowfabric.worker.runner import CAUSES_LIMIT, causes


def raised(*errors: Exception, suppress: bool = False) -> Exception:
    """The first error as it looks when it was raised while the others were handled."""
    outer = errors[0]
    for error, cause in pairwise(errors):
        error.__context__ = cause
        error.__suppress_context__ = suppress
    return outer


def test_causes_are_told_from_the_outside_in() -> None:
    assert causes(raised(ValueError("a"), KeyError("b"), OSError("c"))) == "a: 'b': c"


def test_an_explicit_cause_goes_before_the_context() -> None:
    error = raised(ValueError("outer"), ValueError("context"))
    error.__cause__ = ValueError("cause")
    assert causes(error) == "outer: cause"


def test_a_suppressed_context_is_not_told() -> None:
    assert causes(raised(ValueError("outer"), ValueError("secret"), suppress=True)) == "outer"


def test_a_chain_without_end_is_cut() -> None:
    error = ValueError("again")
    other = ValueError("and")
    error.__context__, other.__context__ = other, error
    assert causes(error).split(": ") == ["again", "and"] * (CAUSES_LIMIT // 2)


@dataclass
class Box:
    size: int


class Options(TypedDict, total=False):
    deep: bool


UserId = NewType("UserId", int)


def anything(a, b=None): ...  # type: ignore[no-untyped-def]
def maybe(a: int | None = None) -> None: ...
def choice(a: Literal["x", "y"] = "x") -> None: ...
def bounded(a: Annotated[int, msgspec.Meta(ge=1)] = 1) -> None: ...
def record(a: Box | None = None, *, b: Options | None = None) -> None: ...
def named(a: UserId = UserId(0)) -> None: ...
def loose(a: Any = 1) -> None: ...
def dated(a: date, b: bytes = b"") -> None: ...


GOOD: list[tuple[Any, tuple[object, ...], dict[str, object]]] = [
    (anything, (1,), {"a": 1}),
    (anything, ({"x": [1, None]}, "y"), {"a": {"x": [1, None]}, "b": "y"}),
    (maybe, (), {}),
    (maybe, (None,), {"a": None}),
    (choice, ("y",), {"a": "y"}),
    (bounded, (4,), {"a": 4}),
    (record, (Box(2),), {"a": Box(2)}),
    (record, ({"size": 2},), {"a": Box(2)}),
    (named, (UserId(7),), {"a": 7}),
    (loose, (), {}),
    (dated, (date(2030, 1, 2), b"\0\xff"), {"a": date(2030, 1, 2), "b": b"\0\xff"}),
]


@pytest.mark.parametrize(("function", "args", "expected"), GOOD)
def test_arguments_come_back_as_they_went_in(
    function: Any, args: tuple[object, ...], expected: dict[str, object]
) -> None:
    handler = Handler("task", function)
    assert handler.arguments.decode(handler.encode_call(args, {})) == expected


def test_keyword_only_arguments_are_passed_by_name() -> None:
    handler = Handler("task", record)
    payload = handler.encode_call((), {"b": {"deep": True}})
    assert handler.arguments.decode(payload) == {"b": {"deep": True}}
    with pytest.raises(InvalidInput, match="takes 1 positional"):
        handler.encode_call((None, {}), {})


@pytest.mark.parametrize(
    ("function", "args", "field"),
    [
        (choice, ("z",), "a"),
        (bounded, (0,), "a"),
        (record, ({"size": "big"},), "a.size"),
        (record, ({},), "a"),
        (dated, ("tomorrow",), "a"),
    ],
)
def test_what_does_not_fit_is_named_by_its_path(
    function: Any, args: tuple[object, ...], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        Handler("task", function).encode_call(args, {})
    assert refused.value.field == field


def test_a_payload_with_fields_that_nobody_knows_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `z`"):
        Handler("task", maybe).arguments.decode(b'{"z":1}')
