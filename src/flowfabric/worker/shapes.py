"""What an annotation says about values: enough to know whether they come back as they went in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeGuard

from msgspec import inspect

from flowfabric.worker.conversion import Conversion

# What is of such a type is equal only to what arrives as well as it went.
_COMPARED = (
    inspect.NoneType,
    inspect.BoolType,
    inspect.IntType,
    inspect.FloatType,
    inspect.StrType,
    inspect.BytesType,
    inspect.DateTimeType,
    inspect.DateType,
    inspect.TimeType,
    inspect.TimeDeltaType,
    inspect.UUIDType,
    inspect.DecimalType,
    inspect.LiteralType,
    inspect.ListType,
    inspect.SetType,
    inspect.FrozenSetType,
    inspect.TupleType,
    inspect.VarTupleType,
    inspect.DictType,
    inspect.UnionType,
)
_IN_JSON = (
    inspect.NoneType,
    inspect.BoolType,
    inspect.IntType,
    inspect.FloatType,
    inspect.StrType,
    inspect.LiteralType,
    inspect.ListType,
    inspect.TypedDictType,
    inspect.UnionType,
    # A value that no annotation describes is checked to be plain before it is stored.
    inspect.AnyType,
    inspect.CustomType,
)
_UNKNOWN = (inspect.AnyType, inspect.RawType)

NO_HOOKS = Conversion()


class Shape(NamedTuple):
    """What an annotation says: about everything inside, in types that compare exactly, in types
    that need no annotation."""

    is_declared: bool
    is_compared: bool
    is_plain: bool


def shape_of(kind: object, conversion: Conversion = NO_HOOKS) -> Shape:
    """Of an annotation as the decoder gets it."""
    is_known = conversion.annotations.is_known
    found = list(_types(inspect.type_info(kind), set()))
    hooked = {id(each) for each in found if _is_custom(each) and is_known(each.cls)}
    return Shape(
        is_declared=not any(
            isinstance(each, _UNKNOWN) or (_is_custom(each) and id(each) not in hooked)
            for each in found
        ),
        is_compared=all(isinstance(each, _COMPARED) for each in found),
        is_plain=not hooked and all(map(_needs_no_annotation, found)),
    )


def _is_custom(info: inspect.Type) -> TypeGuard[inspect.CustomType]:
    return isinstance(info, inspect.CustomType)


def _needs_no_annotation(info: inspect.Type) -> bool:
    if isinstance(info, inspect.DictType):
        return isinstance(info.key_type, inspect.StrType | inspect.AnyType)
    return isinstance(info, _IN_JSON)


def _types(info: inspect.Type, seen: set[int]) -> Iterable[inspect.Type]:
    """Every type inside; a type may contain itself."""
    if id(info) in seen:
        return
    seen.add(id(info))
    yield info
    for name in info.__struct_fields__:
        yield from _types_in(getattr(info, name), seen)


def _types_in(found: object, seen: set[int]) -> Iterable[inspect.Type]:
    if isinstance(found, inspect.Type):
        yield from _types(found, seen)
    elif isinstance(found, inspect.Field):
        yield from _types(found.type, seen)
    elif isinstance(found, tuple):
        for each in found:
            yield from _types_in(each, seen)
