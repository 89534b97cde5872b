"""The exact types of what callers say. Every number, flag, text and word that becomes a column
passes here once.

Stores disagree about what is almost right: one keeps 3.5 as it is, one cuts it, one cannot read it
again. What means the same as the exact type (an `IntEnum`, a subclass of `str`, the text of an
enum) becomes it; everything else is refused by the name of its field.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from flowfabric.errors import InvalidInput

E = TypeVar("E", bound=StrEnum)


def whole(value: object, field: str, hint: str, *, low: int, high: int) -> int:
    """A whole number in a range. A bool is none, and neither is 5.0."""
    number = integer(value, field, hint)
    if low <= number <= high:
        return number
    raise InvalidInput(f"{number} is out of range", field=field, hint=hint)


def integer(value: object, field: str, hint: str) -> int:
    """A whole number of any size."""
    return value if type(value) is int else _int(value, field, hint)


def flag(value: object, field: str) -> bool:
    """True or False, and nothing that merely counts as one of them."""
    if type(value) is bool:
        return value
    raise InvalidInput(f"expected a bool, got {kind(value)}", field=field, hint="use True or False")


def text(value: object, field: str, hint: str = "write it as text") -> str:
    """A plain `str`; a subclass becomes one."""
    if type(value) is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    raise InvalidInput(f"expected text, got {kind(value)}", field=field, hint=hint)


def word(words: type[E], value: object, field: str) -> E:
    """A member of an enum, said by itself or by its text."""
    if type(value) is words:
        return value
    hint = f"use one of {', '.join(words)}"
    try:
        return words(text(value, field, hint))
    except ValueError:
        raise InvalidInput(f"unknown value {value!r}", field=field, hint=hint) from None


def kind(value: object) -> str:
    """How the type of a value is called in a refusal."""
    return "nothing" if value is None else type(value).__name__


def _int(value: object, field: str, hint: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__int__(value)
    shown = f"{kind(value)} {value!r}" if isinstance(value, float | bool) else kind(value)
    raise InvalidInput(f"expected a whole number, got {shown}", field=field, hint=hint)
