"""What a writing function answers: done, with what changed for others, or refused for its clock."""

from __future__ import annotations

from typing import NamedTuple

from flowfabric.errors import ClockSkew
from flowfabric.store.valkey.codec import change_of
from flowfabric.store.valkey.link import Reply


class Change(NamedTuple):
    """What to tell the claimers: how a queue of a partition begins now, nothing if it is empty. Of
    timers of documents the kind follows the number of the partition."""

    name: str
    partition: str
    version: str
    score: str


class Answer(NamedTuple):
    """`examined`: how many hints and ids of ready queues a claim has looked at."""

    value: Reply
    changes: list[Change]
    examined: int = 0


def answer_of(reply: Reply) -> Answer:
    """The answer, or `ClockSkew` when the server's clock did not agree."""
    status, at_ms, *rest = reply if isinstance(reply, list) else [None, 0]
    value = rest[0] if rest else None
    if status == b"skew" and isinstance(at_ms, int) and isinstance(value, int):
        raise ClockSkew.between(at_ms, value)
    changes = rest[1] if len(rest) > 1 and isinstance(rest[1], list) else []
    examined = rest[2] if len(rest) > 2 and isinstance(rest[2], int) else 0
    return Answer(value, [Change(*change_of(change)) for change in changes], examined)
