"""Whether what is handed to a store has exactly the types of its columns.

A store may keep what is almost right in its own way, and stores differ in that. Whoever watches a
store in a test asks here about every record that is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from types import NoneType, UnionType
from typing import Union, get_args, get_origin, get_type_hints

import msgspec

from flowfabric.core.flow.changes import Resolution
from flowfabric.core.flow.model import Edge, Flow, Group, Line
from flowfabric.core.model import Attempt, Execution, Submission
from flowfabric.core.transition import Changeset, Transition


def _types(record: type[msgspec.Struct]) -> dict[str, tuple[type, ...]]:
    """By column the types that it may have; a word is kept as its enum or as its text."""
    found: dict[str, tuple[type, ...]] = {}
    for name, hint in get_type_hints(record).items():
        members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        plain = [getattr(each, "__supertype__", each) for each in members]
        found[name] = tuple(each for each in plain if isinstance(each, type))
    return found


_TYPES: dict[type[msgspec.Struct], dict[str, tuple[type, ...]]] = {
    record: _types(record) for record in (Execution, Flow, Edge, Group, Line, Attempt, Resolution)
}


def inexact(changes: Changeset) -> list[str]:
    """Every column of a changeset that does not have its type."""
    found = list(inexact_transitions(changes.transitions))
    found += inexact_submissions(changes.members)
    for flow in changes.flows:
        found += _patched(Flow, flow.patch)
    records = (changes.new_flows, changes.edges, changes.groups, changes.lines, changes.resolved)
    for some in records:
        for record in some:
            found += _columns(record)
    return found


def require_exact(problems: Iterable[str]) -> None:
    found = list(problems)
    if found:
        raise AssertionError(f"a store is handed what is not of its column's type: {found}")


def inexact_transitions(transitions: Iterable[Transition]) -> Iterator[str]:
    for transition in transitions:
        yield from _patched(Execution, transition.patch)
        if transition.attempt is not None:
            yield from _columns(transition.attempt)
        if transition.line is not None:
            yield from _columns(transition.line)
        yield from _texts(transition.tags or {})


def inexact_submissions(batch: Iterable[Submission]) -> Iterator[str]:
    for submission in batch:
        yield from _columns(submission.execution)
        yield from _texts(submission.tags)
        if type(submission.payload) is not bytes:
            yield f"payload is {submission.payload!r}"
        if type(submission.key) not in (str, NoneType):
            yield f"key is {submission.key!r}"


def _columns(record: msgspec.Struct) -> Iterator[str]:
    values = {name: getattr(record, name) for name in record.__struct_fields__}
    return _patched(type(record), values)


def _patched(record: type[msgspec.Struct], patch: Mapping[str, object]) -> Iterator[str]:
    for name, value in patch.items():
        allowed = _TYPES[record].get(name, ())
        is_word = isinstance(value, StrEnum) and str in allowed
        if allowed and type(value) not in allowed and not is_word:
            yield f"{record.__name__}.{name} is {value!r}"


def _texts(texts: Mapping[str, str]) -> Iterator[str]:
    for pair in texts.items():
        if any(type(text) is not str for text in pair):
            yield f"a tag is {pair!r}"
