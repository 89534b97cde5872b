"""Answers as people see them: every id of an execution in them as people type it."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from flowfabric.printing import value_with_public_ids

S = TypeVar("S", bound=msgspec.Struct)


def shown(record: S) -> S:
    """The same record; what has no id in it is not copied."""
    changed: dict[str, object] = {}
    for name in record.__struct_fields__:
        value: object = getattr(record, name)
        public = _shown(value)
        if public is not value and public != value:
            changed[name] = public
    return msgspec.structs.replace(record, **changed) if changed else record


def _shown(value: object) -> object:
    if isinstance(value, msgspec.Struct):
        return shown(value)
    if type(value) is list:
        return [_shown(each) for each in value]
    return value_with_public_ids(value)
