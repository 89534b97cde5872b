"""Entries: what is kept beside an execution under a topic and a key, once and for as long as it.

A topic and its keys mean something to whoever writes them; here and in the stores they are names
that compare as bytes. Entries belong to a generation of their execution, and the head says which
one counts: a replay begins the next one. While an execution is held nobody but the holder may
decide by what its entries say, so that writing them under the lease leaves its `rev` alone.
Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from flowfabric.core import exact, names
from flowfabric.core.ids import ExecutionId
from flowfabric.errors import IllegalTransition, InvalidInput

if TYPE_CHECKING:
    # A transition carries entries, and an append the guard of a transition.
    from flowfabric.core.transition import Held

PLACE_MAX = (1 << 53) - 1
PAGE = 1000

_set = msgspec.structs.force_setattr


class Entry(msgspec.Struct, frozen=True, gc=False):
    """To be written. `n` is the writer's order among what he writes in one epoch."""

    topic: str
    key: str
    body: bytes
    n: int = 0

    def __post_init__(self) -> None:
        hint = f"count from 0, up to {PLACE_MAX}"
        _set(self, "topic", names.topic_name(self.topic))
        _set(self, "key", names.entry_key(self.key))
        _set(self, "body", names.body(self.body, "body"))
        _set(self, "n", exact.whole(self.n, "n", hint, low=0, high=PLACE_MAX))


class Append(msgspec.Struct, frozen=True, gc=False):
    """Entries of one execution, written if its lease is the one that is shown."""

    id: ExecutionId
    guard: Held
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        if not self.entries:
            raise InvalidInput(
                "the batch has no entries", field="entries", hint="pass at least one entry"
            )
        refuse_double_keys(self.entries)


class Kept(msgspec.Struct, frozen=True, gc=False):
    """An entry as it is stored: of which generation, and written by whom in which order.

    `problem`: why it cannot be read; nobody knows its body then.
    """

    topic: str
    key: str
    body: bytes
    generation: int
    epoch: int
    n: int
    problem: str = ""


class Appended(msgspec.Struct, frozen=True, gc=False):
    """It is written. `there`: what was there before under keys that were given, in their order."""

    id: ExecutionId
    there: tuple[Kept, ...] = ()


class Topic(msgspec.Struct, frozen=True, gc=False):
    """What to read: the entries of a topic after a key. Without a generation, of the one that
    counts."""

    id: ExecutionId
    topic: str
    after: str = ""
    limit: int = PAGE
    generation: int | None = None

    def __post_init__(self) -> None:
        _set(self, "topic", names.topic_name(self.topic))
        if self.after:
            _set(self, "after", names.entry_key(self.after, "after"))
        exact.whole(self.limit, "limit", "use 1 or more", low=1, high=PLACE_MAX)
        if self.generation is not None:
            hint = "count from 0, or leave it out for the one that counts"
            exact.whole(self.generation, "generation", hint, low=0, high=PLACE_MAX)


def refuse_double_keys(entries: Iterable[Entry]) -> None:
    """Two entries of one key in one call: nobody could say which of them was first."""
    seen: set[tuple[str, str]] = set()
    for entry in entries:
        if (entry.topic, entry.key) in seen:
            raise IllegalTransition(f"two entries of {entry.topic} under {entry.key} in one call")
        seen.add((entry.topic, entry.key))
