"""Changesets as calls: those of one partition go together, each guarded by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from flowfabric.core.flow.changes import FlowPatch, Resolution
from flowfabric.core.flow.model import Edge, Flow
from flowfabric.core.ids import PartitionCounts, flow_partition, partition_of
from flowfabric.core.transition import Changeset
from flowfabric.errors import IllegalTransition
from flowfabric.store.valkey.calls import Call, function
from flowfabric.store.valkey.flows.codec import (
    edge_cells,
    flow_cells,
    group_cells,
    line_cells,
    line_name,
    note_cells,
)
from flowfabric.store.valkey.link import Cell
from flowfabric.store.valkey.writing import (
    BODIES_BYTES_MAX,
    Keys,
    Moment,
    Press,
    Shapes,
    Templates,
    lanes_call,
    result_size,
)

T = TypeVar("T")

CHANGES_MAX = 500


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
    by_partition: dict[int, list[int]] = {}
    for position, changes in enumerate(batch):
        if changes.lanes:
            yield Written([position], lanes_call(keys, changes, moment))
            continue
        partition = _partition(changes, counts)
        if partition is not None:
            by_partition.setdefault(partition, []).append(position)
    for partition, positions in by_partition.items():
        for some in _portions(batch, positions):
            cells = _cells([batch[position] for position in some], press)
            scope = keys.partition(partition)
            yield Written(some, function("commit", scope, *moment.cells, keys.hints, *cells))


def _partition(changes: Changeset, counts: PartitionCounts) -> int | None:
    scopes = {flow_partition(id, counts) for id in changes.owners}
    scopes |= {partition_of(transition.id) for transition in changes.transitions[:1]}
    scopes |= {partition_of(member.execution.id) for member in changes.members[:1]}
    if len(scopes) > 1:
        raise IllegalTransition("a changeset of several scopes could be written in part")
    return next(iter(scopes), None)


def _portions(batch: Sequence[Changeset], positions: Iterable[int]) -> Iterator[list[int]]:
    """As many as one call should carry; a changeset is never cut."""
    portion: list[int] = []
    used = _Load(0, 0)
    for position in positions:
        load = _load(batch[position])
        used = _Load(used.records + load.records, used.size + load.size)
        if portion and (used.records > CHANGES_MAX or used.size > BODIES_BYTES_MAX):
            yield portion
            portion, used = [], load
        portion.append(position)
    yield portion


def _load(changes: Changeset) -> _Load:
    records = (
        *(changes.transitions, changes.members, changes.edges, changes.resolved),
        *(changes.groups, changes.lines, changes.done, changes.notes),
    )
    size = sum(map(result_size, changes.transitions))
    size += sum(len(member.payload) for member in changes.members)
    return _Load(1 + sum(map(len, records)), size)


def _cells(batch: Sequence[Changeset], press: Press) -> list[Cell]:
    shapes, templates = Shapes(press), Templates()
    cells: list[Cell] = []
    for changes in batch:
        cells += _listed(changes.transitions, shapes.item)
        cells += _listed(changes.members, templates.item)
        flows: list[Flow | FlowPatch] = [*changes.new_flows, *changes.flows]
        edges: list[Edge | Resolution] = [*changes.edges, *changes.resolved]
        cells += flow_cells(flows[0]) if flows else [""]
        cells += _listed(edges, edge_cells)
        cells += _listed(changes.groups, group_cells)
        cells += _listed(changes.done, lambda line: (line.flow, line_name(line)))
        cells += _listed(changes.lines, line_cells)
        cells += _listed(changes.notes, note_cells)
    return [*shapes.cells(), *templates.cells(), *cells]


def _listed(records: Sequence[T], cells_of: Callable[[T], Sequence[Cell]]) -> list[Cell]:
    """How many there are, and those."""
    return [len(records), *(cell for record in records for cell in cells_of(record))]
