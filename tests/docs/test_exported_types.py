"""Every type that a public verb takes or answers can be imported from where the verb is."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import get_args, get_origin, get_type_hints

import msgspec
import pytest

import flowfabric
from flowfabric.engine.engine import Engine

EXPORTED = {getattr(flowfabric, name) for name in flowfabric.__all__}
# Made by a program itself; the others are made by verbs.
MADE = (flowfabric.App,)
# What is handed on and never looked into, and the words in the columns of stored records.
INNER = {"Client", "Request", "Home", "EdgeKey", "GroupKey"}
INNER |= {"AttemptKind", "AttemptState", "Admission", "Loss", "Join", "OnSatisfied", "OnImpossible"}
INNER |= {"EdgeKind", "EdgeState", "GroupState", "Outcome", "Phase", "Ownership", "Eligibility"}


def own_types(hint: object) -> Iterator[type]:
    """The classes of the package in an annotation; a protocol is kept by whatever fits it."""
    for each in (hint, get_origin(hint)):
        is_own = isinstance(each, type) and each.__module__.startswith("flowfabric.")
        if isinstance(each, type) and is_own and not getattr(each, "_is_protocol", False):
            yield each
    for inner in get_args(hint):
        for each in inner if isinstance(inner, list) else [inner]:
            yield from own_types(each)


def annotated(kind: type) -> Iterator[tuple[str, object]]:
    """What the public verbs of a class, or the fields of a record, are annotated with."""
    for base in kind.__mro__:
        if not base.__module__.startswith("flowfabric."):
            continue
        for name, member in vars(base).items():
            is_made = name == "__init__" and kind in MADE
            verb = member.fget if isinstance(member, property) else member
            if inspect.isfunction(verb) and (is_made or not name.startswith("_")):
                for hint in get_type_hints(verb).values():
                    yield f"{kind.__name__}.{name}", hint
    if issubclass(kind, msgspec.Struct | tuple):
        for name, hint in get_type_hints(kind).items():
            if not name.startswith("_"):
                yield f"{kind.__name__}.{name}", hint


KINDS = sorted(
    # The layer below has records of its own.
    (kind for kind in EXPORTED if isinstance(kind, type) and kind is not Engine),
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_a_public_verb_takes_and_answers_is_exported(kind: type) -> None:
    hidden = {
        f"{where}: {found.__name__}"
        for where, hint in annotated(kind)
        for found in own_types(hint)
        if found not in EXPORTED and found.__name__ not in INNER
    }
    assert hidden == set()


def test_a_hidden_type_is_noticed() -> None:
    class Hidden:
        """Not exported."""

    Hidden.__module__ = "flowfabric.hidden"
    assert list(own_types(dict[str, list[Hidden]] | None)) == [Hidden]
