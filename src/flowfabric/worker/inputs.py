"""Results of upstreams put into the arguments of a member, when it is claimed.

The stored input stays what was submitted; what is passed was pinned when the member was released,
so every attempt gets the same. A place is a path such as `parts/0`; an edge may have several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from flowfabric.core.flow.inputs import Passed

_arguments = msgspec.json.Decoder(dict[str, object])
_unread = msgspec.json.Decoder(msgspec.Raw)


def filled(payload: bytes, passed: Sequence[Passed]) -> bytes:
    """The payload with every passed result in its place, as it was written; raises `DecodeError`
    when something of it is no JSON."""
    if not passed:
        return payload
    arguments = _arguments.decode(payload)
    for each in passed:
        value = [_value(body) for body in each.results] if each.is_list else _value(each.results[0])
        _put(arguments, each.path, value)
    return msgspec.json.encode(arguments)


def _value(result: bytes | None) -> msgspec.Raw | None:
    return _unread.decode(result) if result else None


def _put(inside: object, path: str, value: object) -> None:
    *steps, last = path.split("/")
    for step in steps:
        inside = _step(inside, step)
    if isinstance(inside, dict):
        inside[unescaped(last)] = value
    elif isinstance(inside, list) and last.isdecimal() and int(last) < len(inside):
        inside[int(last)] = value


def _step(inside: object, step: str) -> object:
    if isinstance(inside, Mapping):
        return inside.get(unescaped(step))
    if isinstance(inside, Sequence) and step.isdecimal() and int(step) < len(inside):
        return inside[int(step)]
    return None


def escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1").replace("\n", "~2")


def unescaped(key: str) -> str:
    if "~" not in key:
        return key
    return key.replace("~2", "\n").replace("~1", "/").replace("~0", "~")
