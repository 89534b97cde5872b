"""The writing verbs as calls: grouped by partition, cut to what one call should carry.

A server does nothing else while it runs a function, and keeps all that it wrote until the end of
it: a hundred records at a time cost less each than five hundred.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from flowfabric.core.ids import ExecutionId, partition_of
from flowfabric.core.model import Submission
from flowfabric.core.transition import Changeset, Held, LogLine, Transition
from flowfabric.store.clock import SKEW_LIMIT_MS
from flowfabric.store.valkey.calls import Call, function
from flowfabric.store.valkey.codec import (
    attempt_cells,
    head_cells,
    head_values,
    patch_cells,
    uuid_of,
)
from flowfabric.store.valkey.link import Cell

T = TypeVar("T")

RECORDS_MAX = 125
BODIES_BYTES_MAX = 1 << 20

_encode = msgspec.json.Encoder().encode


class Keys(NamedTuple):
    """Where the keys of a store are. `inline`: all of them are on one server."""

    prefix: str
    inline: bool

    def partition(self, number: int) -> str:
        return f"{self.prefix}:{{fp:{number}}}"

    def shared(self, name: str) -> str:
        return f"{self.prefix}:{{{name}}}"

    @property
    def hints(self) -> str:
        """Where functions tell their hints; nothing when others have to be told instead."""
        return f"{self.prefix}:" if self.inline else ""


def hint_name(namespace: str, lane: str) -> str:
    """What follows the prefix in the key of a lane's hints."""
    return f"{{hint:{len(namespace.encode())}:{namespace}:{lane}}}"


class Moment(NamedTuple):
    """The caller's time, and one that replaces the server's in tests."""

    now_ms: int
    fixed_ms: int | None

    @property
    def cells(self) -> tuple[Cell, ...]:
        return (self.now_ms, "" if self.fixed_ms is None else self.fixed_ms, SKEW_LIMIT_MS)


class Part(NamedTuple):
    """What goes to one partition in one call, by its place in the whole."""

    partition: int
    positions: list[int]


def parts(ids: Sequence[ExecutionId], sizes: Sequence[int]) -> list[Part]:
    found: list[Part] = []
    open_parts: dict[int, tuple[Part, int]] = {}
    for position, (id, size) in enumerate(zip(ids, sizes, strict=True)):
        number = partition_of(id)
        part, used = open_parts.get(number, (None, 0))
        is_full = part is not None and (
            len(part.positions) >= RECORDS_MAX or used + size > BODIES_BYTES_MAX
        )
        if part is None or is_full:
            part, used = Part(number, []), 0
            found.append(part)
        part.positions.append(position)
        open_parts[number] = (part, used + size)
    return found


def insert_calls(
    keys: Keys, batch: Sequence[Submission], moment: Moment
) -> Iterator[tuple[Part, Call]]:
    ids = [submission.execution.id for submission in batch]
    sizes = [len(submission.payload) for submission in batch]
    for part in parts(ids, sizes):
        chosen = [batch[position] for position in part.positions]
        cells = (*moment.cells, keys.hints, *_insert_cells(chosen))
        yield part, function("insert", keys.partition(part.partition), *cells)


def _insert_cells(batch: Sequence[Submission]) -> list[Cell]:
    """Columns that are alike are sent once: most of a batch differs in nothing but its bodies."""
    templates: list[Cell] = []
    items: list[Cell] = []
    last: object = None
    count = 0
    for submission in batch:
        values = head_values(submission.execution)
        if values != last:
            last = values
            cells = head_cells(values)
            templates += (len(cells), *cells)
            count += 1
        extra: list[Cell] = []
        if submission.key is not None or submission.tags:
            extra += (submission.key or "", submission.digest, submission.key_until_ms)
            extra += (text for tag in submission.tags.items() for text in tag)
        uuid = uuid_of(submission.execution.id)
        # What is not to be created is marked by the sign of its template.
        template = count if submission.create else -count
        items += (uuid, submission.payload, template, len(extra), *extra)
    return [count, *templates, *items]


def apply_calls(
    keys: Keys, transitions: Sequence[Transition], moment: Moment
) -> Iterator[tuple[Part, Call]]:
    ids = [transition.id for transition in transitions]
    for part in parts(ids, [_size(transition) for transition in transitions]):
        chosen = [transitions[position] for position in part.positions]
        yield part, _apply_call(keys, part.partition, chosen, (*moment.cells, keys.hints, 0))


def commit_call(keys: Keys, transitions: Sequence[Transition], moment: Moment) -> Call:
    """All or none: they are of one partition, so one call writes them."""
    partition = partition_of(transitions[0].id)
    return _apply_call(keys, partition, transitions, (*moment.cells, keys.hints, 1))


def lanes_call(keys: Keys, changes: Changeset, moment: Moment) -> Call:
    cells = [cell for lane in changes.lanes for cell in (lane.name, lane.rev, lane.state)]
    return function("lane_change", keys.shared("lanes"), *moment.cells, *cells)


def _size(transition: Transition) -> int:
    attempt = transition.attempt
    return len(attempt.result) if attempt is not None and attempt.result is not None else 0


def _apply_call(
    keys: Keys, partition: int, transitions: Sequence[Transition], header: tuple[Cell, ...]
) -> Call:
    """What transitions have in common is sent once: a batch of completions has one shape."""
    shapes: list[Cell] = []
    items: list[Cell] = []
    last: object = None
    count = 0
    for transition in transitions:
        shape = _shape(transition)
        if shape != last:
            last = shape
            shapes += _shape_cells(transition)
            count += 1
        extra: list[Cell] = []
        if transition.attempt is not None and transition.attempt.result is not None:
            extra.append(transition.attempt.result)
        if transition.tags:
            extra += (text for tag in transition.tags.items() for text in tag)
        # The epoch of a lease, or the revision that was seen.
        items += (uuid_of(transition.id), transition.guard[0], count, len(extra), *extra)
    return function("apply", keys.partition(partition), *header, count, *shapes, *items)


def _shape(transition: Transition) -> tuple[object, ...]:
    """Everything but who it is about, what was seen of it, its result and tags."""
    attempt = transition.attempt
    about = attempt and (
        attempt.attempt,
        attempt.kind,
        attempt.lifecycle,
        attempt.worker,
        attempt.epoch,
        attempt.started_ms,
        attempt.ended_ms,
        attempt.detail,
        attempt.category,
        attempt.result is None,
    )
    return (transition.guard[1:], transition.patch, transition.log, about)


_SILENT = LogLine("")


def _shape_cells(transition: Transition) -> list[Cell]:
    guard, log, attempt = transition.guard, transition.log or _SILENT, transition.attempt
    shown: tuple[Cell, ...] = (
        ("held", guard.token, int(guard.started)) if isinstance(guard, Held) else ("seen", "", 0)
    )
    return [
        *shown,
        log.kind,
        _encode(log.detail) if log.detail else "{}",
        "" if attempt is None else attempt.attempt,
        int(attempt is not None and attempt.result is not None),
        *patch_cells(transition.patch),
        *(() if attempt is None else attempt_cells(attempt)),
    ]
