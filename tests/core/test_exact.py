"""The exact types of what callers say: a table of what becomes what, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction

import pytest

from flowfabric.core import exact
from flowfabric.core.flow.model import EdgeKind
from flowfabric.core.states import LaneState
from flowfabric.errors import InvalidInput


class Level(IntEnum):
    HIGH = 3


class Number(int):
    """Equal to a number, as the integers of other libraries may be."""


class Text(str):
    __slots__ = ()


class Indexed:
    """Counts as an index, as numpy's integers do, and is no `int`."""

    def __index__(self) -> int:
        return 3


def whole(value: object) -> int:
    return exact.whole(value, "k", "1 to 5", low=1, high=5)


@pytest.mark.parametrize("value", [3, Level.HIGH, Number(3)])
def test_a_whole_number_is_a_plain_int(value: object) -> None:
    assert (whole(value), type(whole(value))) == (3, int)


NO_NUMBERS = [3.0, 3.5, True, "3", None, Fraction(3), Decimal(3), Indexed(), b"3", [3], 3j]


@pytest.mark.parametrize("value", NO_NUMBERS, ids=exact.kind)
def test_what_only_looks_like_a_whole_number_is_refused_by_field(value: object) -> None:
    for check in (whole, lambda value: exact.integer(value, "k", "1 to 5")):
        with pytest.raises(InvalidInput, match="expected a whole number") as refused:
            check(value)
        assert (refused.value.field, refused.value.hint) == ("k", "1 to 5")


@pytest.mark.parametrize("value", [0, 6, -(10**40)])
def test_a_number_out_of_range_is_refused(value: int) -> None:
    with pytest.raises(InvalidInput, match="out of range"):
        whole(value)
    assert exact.integer(value, "k", "any") == value


@pytest.mark.parametrize("value", ["a", Text("a"), ""])
def test_a_text_is_a_plain_str(value: str) -> None:
    found = exact.text(value, "name")
    assert (found, type(found)) == (str(value), str)


def test_an_enum_is_the_text_that_it_stands_for() -> None:
    assert type(exact.text(EdgeKind.ORDER, "name")) is str
    assert exact.text(EdgeKind.ORDER, "name") == "order"


@pytest.mark.parametrize("value", [b"a", 1, None, ["a"], True], ids=repr)
def test_what_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="expected text") as refused:
        exact.text(value, "name")
    assert refused.value.field == "name"


@pytest.mark.parametrize("value", [EdgeKind.ORDER, "order", Text("order")])
def test_a_word_is_a_member_of_its_enum(value: object) -> None:
    assert exact.word(EdgeKind, value, "kind") is EdgeKind.ORDER


@pytest.mark.parametrize("value", ["melted", LaneState.PAUSED, 1, None, True, ["order"]], ids=repr)
def test_a_word_that_is_not_known_is_refused_with_those_that_are(value: object) -> None:
    with pytest.raises(InvalidInput) as refused:
        exact.word(EdgeKind, value, "kind")
    assert (refused.value.field, "success_only" in refused.value.hint) == ("kind", True)


@pytest.mark.parametrize("value", [1, 0, "True", None, 1.0], ids=repr)
def test_a_flag_is_true_or_false(value: object) -> None:
    flag: Callable[[object], bool] = lambda value: exact.flag(value, "let_run")  # noqa: E731
    with pytest.raises(InvalidInput, match="expected a bool"):
        flag(value)
    assert (flag(True), flag(False)) == (True, False)
