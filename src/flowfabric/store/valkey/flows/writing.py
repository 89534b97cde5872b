"""Changesets as calls: as many as a server may be given at a time, each guarded by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple, TypeVar

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.model import Flow
from flowfabric.core.ids import PartitionCounts, flow_partition, partition_of
from flowfabric.core.transition import Changeset
from flowfabric.errors import IllegalTransition
from flowfabric.store.valkey.calls import Call, function
from flowfabric.store.valkey.flows.codec import (
    done_cells,
    edge_cells,
    flow_cells,
    group_cells,
    line_cells,
    note_cells,
)
from flowfabric.store.valkey.writing import (
    BODIES_BYTES_MAX,
    Keys,
    Moment,
    Packed,
    Press,
    Shapes,
    Templates,
    lanes_call,
    packed,
    result_size,
)

T = TypeVar("T")

# A changeset is never cut; several are sent together up to this many records.
RECORDS_MAX = 125

Places = dict[int, list[int]]


_records_of: Callable[[Changeset], tuple[Sequence[object], ...]] = attrgetter(
    *("transitions", "members", "edges", "resolved", "groups", "lines", "done", "notes")
)


class Written(NamedTuple):
    """A call, and which changesets it writes."""

    positions: list[int]
    call: Call


class _Load(NamedTuple):
    """What a changeset weighs."""

    records: int
    size: int


def commit_calls(
    keys: Keys, batch: Sequence[Changeset], moment: Moment, counts: PartitionCounts
) -> Iterator[Written]:
    """A changeset without anything in it goes nowhere."""
    press = Press()
    by_partition: Places = {}
    for position, changes in enumerate(batch):
        if changes.lanes:
            yield Written([position], lanes_call(keys, changes, moment))
            continue
        partition = _partition(changes, counts)
        if partition is not None:
            by_partition.setdefault(partition, []).append(position)
    for places in _portions(keys, batch, by_partition):
        scope, cells = keys.partition(next(iter(places))), _cells(keys, batch, places, press)
        positions = [position for some in places.values() for position in some]
        yield Written(positions, function("commit", scope, *moment.cells, keys.hints, cells))


def _partition(changes: Changeset, counts: PartitionCounts) -> int | None:
    scopes = {flow_partition(id, counts) for id in changes.owners}
    if changes.transitions:
        scopes.add(partition_of(changes.transitions[0].id))
    if changes.members:
        scopes.add(partition_of(changes.members[0].execution.id))
    if len(scopes) > 1:
        raise IllegalTransition("a changeset of several scopes could be written in part")
    return scopes.pop() if scopes else None


def _portions(keys: Keys, batch: Sequence[Changeset], by_partition: Places) -> Iterator[Places]:
    """As many as one call should carry, of one partition unless all of them are on one server."""
    portion: Places = {}
    used = _Load(0, 0)
    for partition, positions in by_partition.items():
        if portion and not keys.inline:
            yield portion
            portion, used = {}, _Load(0, 0)
        for position in positions:
            load = _load(batch[position])
            used = _Load(used.records + load.records, used.size + load.size)
            if portion and (used.records > RECORDS_MAX or used.size > BODIES_BYTES_MAX):
                yield portion
                portion, used = {}, load
            portion.setdefault(partition, []).append(position)
    if portion:
        yield portion


def _load(changes: Changeset) -> _Load:
    records = sum(map(len, _records_of(changes)))
    size = sum(map(result_size, changes.transitions))
    for member in changes.members:
        size += len(member.payload)
    return _Load(1 + records, size)


def _cells(keys: Keys, batch: Sequence[Changeset], places: Places, press: Press) -> bytes:
    """What many have in common, the partitions, then the changesets of each."""
    shapes, templates = Shapes(press), Templates()
    cells: list[Packed] = []
    for positions in places.values():
        cells.append(len(positions))
        for position in positions:
            changes = batch[position]
            _list(cells, changes.transitions, shapes.item)
            _list(cells, changes.members, templates.item)
            flow = _flow(changes)
            cells += [""] if flow is None else flow_cells(flow)
            rest = _rest(changes, "" if flow is None else flow.id)
            cells.append(len(rest))
            cells += rest
    return packed(shapes.known, templates.known, [*map(keys.partition, places)], *cells)


def _flow(changes: Changeset) -> Flow | FlowPatch | None:
    """What it is about."""
    if changes.flows:
        return changes.flows[0]
    return changes.new_flows[0] if changes.new_flows else None


def _rest(changes: Changeset, flow: str) -> list[Packed]:
    """What else there is: its name, how many, and those."""
    cells: list[Packed] = []
    edge_of = partial(edge_cells, flow)
    _section(cells, "edges", changes.edges, edge_of)
    _section(cells, "edges", changes.resolved, edge_of)
    _section(cells, "groups", changes.groups, group_cells)
    _section(cells, "done", changes.done, done_cells)
    _section(cells, "lines", changes.lines, line_cells)
    _section(cells, "notes", changes.notes, note_cells)
    return cells


def _section(
    cells: list[Packed],
    name: str,
    records: Sequence[T],
    cells_of: Callable[[T], Sequence[Packed]],
) -> None:
    if records:
        cells.append(name)
        _list(cells, records, cells_of)


def _list(
    cells: list[Packed], records: Sequence[T], cells_of: Callable[[T], Sequence[Packed]]
) -> None:
    """How many there are, and those."""
    cells.append(len(records))
    for record in records:
        cells += cells_of(record)
