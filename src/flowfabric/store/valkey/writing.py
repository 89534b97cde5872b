"""The writing verbs as calls: grouped by partition, cut to what one call should carry.

A server does nothing else while it runs a function, and keeps all that it wrote until the end of
it: a hundred records at a time cost less each than five hundred.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from flowfabric.core.ids import ExecutionId, partition_of
from flowfabric.core.model import Submission, Value
from flowfabric.core.transition import Changeset, Held, Transition
from flowfabric.store.clock import SKEW_LIMIT_MS
from flowfabric.store.valkey.calls import Call, function
from flowfabric.store.valkey.codec import uuid_of
from flowfabric.store.valkey.flows.codec import line_cells
from flowfabric.store.valkey.heads import attempt_text, columns_text, head_values, template_of
from flowfabric.store.valkey.link import Cell

T = TypeVar("T")

RECORDS_MAX = 125
SHAPES_KEPT = 4
BODIES_BYTES_MAX = 1 << 20

_encode = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode


class Keys(NamedTuple):
    """Where the keys of a store are. `inline`: all of them are on one server."""

    prefix: str
    inline: bool

    def partition(self, number: int) -> str:
        return f"{self.prefix}:{{fp:{number}}}"

    def execution(self, id: ExecutionId) -> str:
        return f"{self.prefix}:{id.replace('}:', '}:x:', 1)}"

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
    open_parts: dict[int, Part] = {}
    used: dict[int, int] = {}
    for position, (id, size) in enumerate(zip(ids, sizes, strict=True)):
        number = partition_of(id)
        part = open_parts.get(number)
        if (
            part is None
            or len(part.positions) >= RECORDS_MAX
            or used[number] + size > BODIES_BYTES_MAX
        ):
            part = open_parts[number] = Part(number, [])
            used[number] = 0
            found.append(part)
        part.positions.append(position)
        used[number] += size
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
    templates = Templates()
    items = [cell for submission in batch for cell in templates.item(submission)]
    return [*templates.cells(), *items]


class Templates:
    """Columns that are alike are sent once: most of a batch differs in nothing but its bodies."""

    def __init__(self) -> None:
        self._templates: list[dict[str, object]] = []
        self._last: object = None

    def cells(self) -> list[Cell]:
        """What is known of each, and the same as it is kept."""
        return [_pack(self._templates), *map(columns_text, self._templates)]

    def item(self, submission: Submission) -> list[Cell]:
        values = head_values(submission.execution)
        if values != self._last:
            self._last = values
            self._templates.append(template_of(values))
        extra: list[Cell] = []
        if submission.key is not None or submission.tags:
            extra += (submission.key or "", submission.digest, submission.key_until_ms)
            extra += (text for tag in submission.tags.items() for text in tag)
        uuid = uuid_of(submission.execution.id)
        # What is not to be created is marked by the sign of its template.
        count = len(self._templates)
        template = count if submission.create else -count
        return [uuid, submission.payload, template, len(extra), *extra]


def apply_calls(
    keys: Keys, transitions: Sequence[Transition], moment: Moment
) -> Iterator[tuple[Part, Call]]:
    press = Press()
    ids = [transition.id for transition in transitions]
    for part in parts(ids, [result_size(transition) for transition in transitions]):
        chosen = [transitions[position] for position in part.positions]
        shapes = Shapes(press)
        items = [cell for transition in chosen for cell in shapes.item(transition)]
        cells = (*moment.cells, keys.hints, *shapes.cells(), *items)
        yield part, function("apply", keys.partition(part.partition), *cells)


def lanes_call(keys: Keys, changes: Changeset, moment: Moment) -> Call:
    cells = [cell for lane in changes.lanes for cell in (lane.name, lane.rev, lane.state)]
    return function("lane_change", keys.shared("lanes"), *moment.cells, *cells)


def result_size(transition: Transition) -> int:
    attempt = transition.attempt
    return len(attempt.result) if attempt is not None and attempt.result is not None else 0


class Pressed(NamedTuple):
    """A shape ready to be sent: what it is of, what is known of it, its columns, its attempt."""

    alike: tuple[object, ...]
    shape: msgspec.Raw
    columns: bytes
    attempt: bytes


class Press:
    """The last few shapes: the calls of one verb mostly have the same ones."""

    def __init__(self) -> None:
        self._last: deque[Pressed] = deque(maxlen=SHAPES_KEPT)

    def __call__(self, transition: Transition) -> Pressed:
        alike = _alike(transition)
        for known in self._last:
            if known.alike == alike:
                return known
        attempt = transition.attempt
        fresh = Pressed(
            alike,
            msgspec.Raw(_pack(_shape(transition))),
            columns_text(transition.patch),
            b"" if attempt is None else attempt_text(attempt),
        )
        self._last.appendleft(fresh)
        return fresh


class Shapes:
    """What transitions have in common is sent once: a batch of completions has one shape."""

    def __init__(self, press: Press) -> None:
        self._press = press
        self._pressed: list[Pressed] = []
        self._numbers: dict[int, int] = {}

    def cells(self) -> list[Cell]:
        """What is known of each, and its columns and its attempt as they are kept."""
        texts = [text for each in self._pressed for text in (each.columns, each.attempt)]
        return [_pack([each.shape for each in self._pressed]), *texts]

    def item(self, transition: Transition) -> list[Cell]:
        pressed = self._press(transition)
        number = self._numbers.get(id(pressed))
        if number is None:
            self._pressed.append(pressed)
            number = self._numbers[id(pressed)] = len(self._pressed)
        extra: list[Cell] = []
        if transition.attempt is not None and transition.attempt.result is not None:
            extra.append(transition.attempt.result)
        if transition.line is not None:
            extra += line_cells(transition.line)
        if transition.tags:
            extra += (text for tag in transition.tags.items() for text in tag)
        # The epoch of a lease, or the revision that was seen.
        return [uuid_of(transition.id), transition.guard[0], number, len(extra), *extra]


def _alike(transition: Transition) -> tuple[object, ...]:
    """Everything but who it is about, what was seen of it, its result, line and tags."""
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
    has_line = transition.line is not None
    return (transition.guard[1:], transition.patch, transition.log, about, has_line)


# What the functions look at.
_LOOKED_AT = frozenset(
    (
        *("state", "reason", "lease_token", "lease_until_ms", "epoch", "due_ms", "attempt"),
        *("priority", "next_attempt", "next_kind", "attempt_left_ms", "deadline_ms"),
        *("started_ms", "flow", "purge_ms"),
    )
)


class _Shape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Guard, patch, log line and attempt, as far as the function has to know them."""

    token: str | None = None
    is_started: bool | None = None
    set: dict[str, Value]
    gone: list[str]
    count: int
    kind: str | None = None
    detail: str | None = None
    number: int | None = None
    has_result: bool = False
    has_line: bool = False


def _shape(transition: Transition) -> _Shape:
    guard, log, attempt = transition.guard, transition.log, transition.attempt
    seen = {name: value for name, value in transition.patch.items() if name in _LOOKED_AT}
    return _Shape(
        token=guard.token if isinstance(guard, Held) else None,
        is_started=guard.started if isinstance(guard, Held) else None,
        set={name: value for name, value in seen.items() if value is not None},
        gone=[name for name, value in seen.items() if value is None],
        count=len(transition.patch),
        kind=None if log is None else log.kind,
        detail=None if log is None else _encode(log.detail).decode(),
        number=None if attempt is None else attempt.attempt,
        has_result=attempt is not None and attempt.result is not None,
        has_line=transition.line is not None,
    )
