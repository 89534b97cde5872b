"""Rows on their way to SQLite: plain cells, and chunks of few sizes."""

from __future__ import annotations

import sqlite3

import pytest

from flowfabric.core.flow.model import Edge
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.states import State
from flowfabric.store.sqlite.flow_rows import EDGE_NAMES
from flowfabric.store.sqlite.rows import SIZES, Cell, cells, chunks
from flowfabric.store.sqlite.statements import Part, many, run_guarded

FLOW = FlowId("f")
UPSTREAM = ExecutionId("{fp:0}:u")


def edges(count: int) -> list[Edge]:
    return [
        Edge(flow=FLOW, upstream=UPSTREAM, downstream=ExecutionId(f"{{fp:0}}:{n}"))
        for n in range(count)
    ]


def test_cells_are_stored_as_what_they_stand_for(schema: sqlite3.Connection) -> None:
    row: tuple[Cell, ...] = (State.ACTIVE, None, True, False, 7, b"\x00\xff", "text")
    marks = ", ".join("?" * len(row))
    found = schema.execute(f"SELECT {marks}", cells([row])).fetchone()
    assert found == ("active", None, 1, 0, 7, b"\x00\xff", "text")


@pytest.mark.parametrize("count", [1, 4, 100, 101, SIZES[-1], SIZES[-1] + 1])
def test_a_batch_is_cut_into_known_sizes_that_hold_it(count: int) -> None:
    sizes = [size for size, _ in chunks(edges(count))]
    assert set(sizes) <= set(SIZES)
    assert sum(sizes) >= count
    assert len(sizes) == -(-count // SIZES[-1])


def test_rows_that_fill_a_chunk_up_are_not_written(schema: sqlite3.Connection) -> None:
    ready = many("edge_insert", edges(4), names=EDGE_NAMES)
    assert run_guarded(schema, [Part(ready, changes=4)])
    assert schema.execute("SELECT count(*) FROM edge").fetchone() == (4,)


def test_no_rows_are_no_statement() -> None:
    assert many("edge_insert", [], names=EDGE_NAMES) == []


def test_a_part_that_changes_less_than_it_should_ends_the_run(schema: sqlite3.Connection) -> None:
    ready = many("edge_insert", edges(2), names=EDGE_NAMES)
    later = many("edge_insert", edges(3), names=EDGE_NAMES)
    assert not run_guarded(schema, [Part(ready, changes=3), Part(later, changes=1)])
    assert schema.execute("SELECT count(*) FROM edge").fetchone() == (2,)
