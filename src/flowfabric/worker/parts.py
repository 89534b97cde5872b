"""The parts of values: the fields of records, and what lists and dicts hold, with their places."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import msgspec

from flowfabric.worker import pydantic_values


def parts(value: object) -> dict[str, object] | None:
    """The fields of a record by the names that they are written with; None for anything else."""
    kind = type(value)
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        tag: dict[str, object] = {} if config.tag is None else {str(config.tag_field): config.tag}
        fields = msgspec.structs.fields(value)
        return tag | {each.encode_name: getattr(value, each.name, None) for each in fields}
    if pydantic_values.is_model(kind):
        return pydantic_values.fields(value)
    if dataclasses.is_dataclass(kind):
        names: Iterable[str] = (each.name for each in dataclasses.fields(kind))
    elif hasattr(kind, "__attrs_attrs__"):
        names = (each.name for each in kind.__attrs_attrs__)
    elif isinstance(value, tuple) and hasattr(kind, "_fields"):
        names = kind._fields
    else:
        return None
    return {name: getattr(value, name, None) for name in names}


def inner(value: object, path: str) -> Iterator[tuple[str, object]]:
    """What a container or a record holds; a model of pydantic's is one value."""
    if pydantic_values.is_model(type(value)):
        return
    held = value if isinstance(value, dict) else parts(value)
    if held is not None:
        yield from ((f"{path}.{key}", each) for key, each in held.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"{path}[{place}]", each) for place, each in enumerate(value))


def leaves(value: object, path: str) -> Iterable[tuple[str, object]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, f"{path}.{key}")
    elif isinstance(value, list):
        for place, each in enumerate(value):
            yield from leaves(each, f"{path}[{place}]")
    else:
        yield path, value
