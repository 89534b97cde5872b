"""Results of upstreams put into the arguments of a member, when it is claimed.

The stored input stays what was submitted; what is passed was pinned when the member was released,
so every attempt gets the same. A place is a path such as `parts/0`; an edge may have several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from flowfabric.core.flow.inputs import Passed
from flowfabric.worker.codec import decode_any, unread


def filled(payload: bytes, passed: Sequence[Passed]) -> bytes:
    """The payload with every passed result in its place."""
    if not passed:
        return payload
    arguments: object = decode_any(payload)
    for each in passed:
        values = [unread(body) if body else None for body in each.results]
        _put(arguments, each.path, values if each.is_list else values[0])
    return msgspec.json.encode(arguments)


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
