"""The writing verbs as calls: grouped by partition, cut to what one call should carry.

A server does nothing else while it runs a function, and keeps all that it wrote until the end of
it: a hundred records at a time cost less each than five hundred.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeVar

import msgspec

from flowfabric.core.entries import Entry
from flowfabric.core.ids import ExecutionId, partition_of
from flowfabric.core.model import Attempt, Secretive, Submission, Value
from flowfabric.core.transition import Changeset, Held, Transition
from flowfabric.store.clock import FollowingClock, arriving_ms
from flowfabric.store.valkey.calls import Call, function
from flowfabric.store.valkey.codec import uuid_of
from flowfabric.store.valkey.flows.codec import line_cells
from flowfabric.store.valkey.heads import (
    attempt_text,
    columns_text,
    head_values,
    string_of,
    template_of,
)
from flowfabric.store.valkey.link import Cell

Packed = Cell | msgspec.Raw

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


def hint_name(namespace: str, route: str) -> str:
    """What follows the prefix in the key of a route's hints."""
    return f"{{hint:{len(namespace.encode())}:{namespace}:{route}}}"


class Moment(NamedTuple):
    """The time of the caller's decision, one that replaces the server's in tests, and the caller's
    clock: it is looked at for each call of its own."""

    now_ms: int
    fixed_ms: int | None
    caller: FollowingClock | None = None

    @property
    def cells(self) -> tuple[Cell, ...]:
        caller_ms = arriving_ms(self.caller, self.now_ms)
        return (self.now_ms, "" if self.fixed_ms is None else self.fixed_ms, caller_ms)


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
        templates = Templates()
        items = [cell for submission in chosen for cell in templates.item(submission)]
        cells = packed(templates.known, *items)
        scope = keys.partition(part.partition)
        yield part, function("insert", scope, *moment.cells, keys.hints, cells)


def packed(*cells: object) -> bytes:
    """Cells as one: the server reads many small ones sooner from a list than as arguments."""
    return _pack(cells)


class Templates:
    """Columns that are alike are sent once: most of a batch differs in nothing but its bodies."""

    def __init__(self) -> None:
        self.known: list[_Template] = []
        self._numbers: dict[object, int] = {}
        self._last: object = None
        self._number = 0

    def item(self, submission: Submission) -> list[Packed]:
        execution = submission.execution
        values = head_values(execution)
        if values != self._last:
            self._last, self._number = values, self._numbered(values)
        extra: list[Packed] = []
        if submission.key is not None or submission.tags:
            extra += (submission.key or "", submission.digest, submission.key_until_ms)
            extra += (text for tag in submission.tags.items() for text in tag)
        # What is not to be created is marked by the sign of its template.
        template = self._number if submission.create else -self._number
        payload = string_of(submission.payload)
        return [uuid_of(execution.id), payload, execution.flow, template, len(extra), *extra]

    def _numbered(self, values: tuple[object, ...]) -> int:
        number = self._numbers.get(values)
        if number is None:
            self.known.append(_template(template_of(values)))
            number = self._numbers[values] = len(self.known)
        return number


def apply_calls(
    keys: Keys, transitions: Sequence[Transition], moment: Moment
) -> Iterator[tuple[Part, Call]]:
    press = Press()
    ids = [transition.id for transition in transitions]
    for part in parts(ids, [result_size(transition) for transition in transitions]):
        chosen = [transitions[position] for position in part.positions]
        shapes = Shapes(press)
        items = [cell for transition in chosen for cell in shapes.item(transition)]
        cells = packed(shapes.known, *items)
        scope = keys.partition(part.partition)
        yield part, function("apply", scope, *moment.cells, keys.hints, cells)


def lanes_call(keys: Keys, changes: Changeset, moment: Moment) -> Call:
    cells = [cell for lane in changes.lanes for cell in (lane.name, lane.rev, lane.state)]
    return function("lane_change", keys.shared("lanes"), *moment.cells, *cells)


def result_size(transition: Transition) -> int:
    attempt = transition.attempt
    size = len(attempt.result) if attempt is not None and attempt.result is not None else 0
    return (
        size + sum(len(entry.body) for entry in transition.entries) if transition.entries else size
    )


def entry_cells(entries: Sequence[Entry]) -> list[Packed]:
    """How many there are, and those: the name, the writer's order and the body of each."""
    cells: list[Packed] = [len(entries)]
    for entry in entries:
        name = string_of(f"{entry.topic}\0{entry.key}\0".encode())
        cells += (name, str(entry.n), string_of(entry.body))
    return cells


class Pressed(NamedTuple):
    """A shape ready to be sent, and what it is of."""

    alike: tuple[object, ...]
    shape: msgspec.Raw


class Press:
    """The last few shapes: the calls of one verb mostly have the same ones."""

    def __init__(self) -> None:
        self._last: deque[Pressed] = deque(maxlen=SHAPES_KEPT)

    def __call__(self, transition: Transition) -> Pressed:
        alike = _alike(transition)
        for known in self._last:
            if known.alike == alike:
                return known
        fresh = Pressed(alike, msgspec.Raw(_pack(_shape(transition))))
        self._last.appendleft(fresh)
        return fresh


class Shapes:
    """What transitions have in common is sent once: a batch of completions has one shape."""

    def __init__(self, press: Press) -> None:
        self._press = press
        self._pressed: list[Pressed] = []
        self._numbers: dict[int, int] = {}

    @property
    def known(self) -> list[msgspec.Raw]:
        return [each.shape for each in self._pressed]

    def item(self, transition: Transition) -> list[Packed]:
        pressed = self._press(transition)
        number = self._numbers.get(id(pressed))
        if number is None:
            self._pressed.append(pressed)
            number = self._numbers[id(pressed)] = len(self._pressed)
        extra: list[Packed] = []
        attempt = transition.attempt
        if attempt is not None and attempt.result is not None:
            extra.append(string_of(attempt.result))
        if transition.line is not None:
            extra += line_cells(transition.line)
        if transition.entries:
            extra += entry_cells(transition.entries)
        if transition.tags:
            extra += (text for tag in transition.tags.items() for text in tag)
        # The epoch of a lease, or the revision that was seen.
        return [uuid_of(transition.id), transition.guard.compared[0], number, len(extra), *extra]


_about: Callable[[Attempt], tuple[object, ...]] = attrgetter(
    *("attempt", "kind", "lifecycle", "worker", "epoch", "started_ms", "ended_ms"),
    *("detail", "category"),
)


def _alike(transition: Transition) -> tuple[object, ...]:
    """Everything but who it is about, what was seen of it, its result, line, entries and tags."""
    attempt, extra = transition.attempt, (transition.line is not None, bool(transition.entries))
    about = attempt and (_about(attempt), attempt.result is None)
    return (transition.guard.compared[1:], transition.patch, transition.log, about, extra)


# What the functions look at, in what is new and in what changes.
_LOOKED_AT = frozenset(
    (
        *("namespace", "route", "created_ms"),
        *("state", "reason", "lease_token", "lease_until_ms", "epoch", "due_ms", "attempt"),
        *("priority", "next_attempt", "next_kind", "attempt_left_ms", "deadline_ms"),
        *("started_ms", "purge_ms"),
    )
)


class _Shape(Secretive, frozen=True, kw_only=True, omit_defaults=True):
    """Guard, patch, log line and attempt, as far as the function has to know them, and columns and
    attempt as they are kept."""

    token: str | None = None
    reasons: str | None = None
    state: Value = None
    home: Value = None
    set: list[Value]
    gone: list[str]
    count: int
    columns: msgspec.Raw
    attempt: msgspec.Raw | None = None
    kind: str | None = None
    detail: str | None = None
    number: int | None = None
    has_result: bool = False
    has_line: bool = False
    has_entries: bool = False


def _shape(transition: Transition) -> _Shape:
    guard, log, attempt = transition.guard, transition.log, transition.attempt
    # The flow is no column of the text: it is what the text begins with.
    columns = {name: value for name, value in transition.patch.items() if name != "flow"}
    seen = {name: value for name, value in columns.items() if name in _LOOKED_AT}
    return _Shape(
        token=guard.token if isinstance(guard, Held) else None,
        reasons=guard.reasons if isinstance(guard, Held) else None,
        state=seen.get("state"),
        home=transition.patch.get("flow"),
        set=[cell for pair in seen.items() if pair[1] is not None for cell in pair],
        gone=[name for name, value in seen.items() if value is None],
        count=len(columns),
        columns=string_of(columns_text(columns)),
        attempt=None if attempt is None else string_of(attempt_text(attempt)),
        kind=None if log is None else log.kind,
        detail=None if log is None else _encode(log.detail).decode(),
        number=None if attempt is None else attempt.attempt,
        has_result=attempt is not None and attempt.result is not None,
        has_line=transition.line is not None,
        has_entries=bool(transition.entries),
    )


class _Template(msgspec.Struct, frozen=True):
    """What the functions look at, all columns as they are kept, and how many they are."""

    row: dict[str, object]
    columns: msgspec.Raw
    count: int


def _template(columns: dict[str, object]) -> _Template:
    row = {name: value for name, value in columns.items() if name in _LOOKED_AT}
    return _Template(row, string_of(columns_text(columns)), len(columns))
