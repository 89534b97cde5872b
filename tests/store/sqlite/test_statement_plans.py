"""Every statement finds its rows by the index made for it, whatever anybody's ANALYZE says.

Plans are those of connections as the store makes them, on files of every size and statistics.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowfabric.store.sqlite import SqliteStore
from flowfabric.store.sqlite.statements import SQL
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import order
from flowfabric.testing.conformance.steps import put
from tests.store.sqlite.declared_plans import PLANS, SMALL, SORTED
from tests.store.sqlite.planning import (
    all_statistics,
    new_file,
    plan_of,
    texts,
    write_statistics,
)

FILL = """WITH RECURSIVE x (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM x WHERE i < ?)
    INSERT INTO edge SELECT 'flow' || (i % {flows}), 'up' || i, 'down' || i, 'start', '', 0, '',
        1, '', 'pending', 0, -1, '', NULL FROM x"""


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    made = new_file(tmp_path / "store.db")
    yield made
    made.close()


def wrong(connection: sqlite3.Connection) -> dict[str, set[tuple[str, ...]]]:
    """By statement the plans that are not the declared one."""
    found = {name: {plan_of(connection, text) for text in texts(name)} for name in SQL}
    return {name: plans for name, plans in found.items() if plans != {PLANS.get(name)}}


def test_every_statement_has_a_declared_plan_and_nothing_else_has() -> None:
    assert set(PLANS) == set(SQL)


def test_no_declared_plan_walks_or_sorts_what_grows() -> None:
    walking = {name: [s for s in plan if s.startswith("walks")] for name, plan in PLANS.items()}
    assert not {name: steps for name, steps in walking.items() if set(steps) - set(SMALL)}
    assert {name for name, plan in PLANS.items() if "sorts" in plan} == SORTED


def test_statements_are_planned_as_declared(connection: sqlite3.Connection) -> None:
    assert wrong(connection) == {}


def test_statistics_that_come_while_a_store_is_open_change_no_plan(
    connection: sqlite3.Connection, tmp_path: Path
) -> None:
    for name, statistics in all_statistics(connection).items():
        write_statistics(tmp_path / "store.db", statistics)
        assert wrong(connection) == {}, name


def test_statistics_that_are_there_when_a_store_is_opened_change_no_plan(
    connection: sqlite3.Connection, tmp_path: Path
) -> None:
    for name, statistics in all_statistics(connection).items():
        write_statistics(tmp_path / "store.db", statistics)
        again = new_file(tmp_path / "store.db")
        assert wrong(again) == {}, name
        again.close()


@pytest.mark.parametrize("flows", [1, 1_000])
@pytest.mark.parametrize("is_analyzed", [False, True])
def test_rows_and_their_true_statistics_change_no_plan(
    connection: sqlite3.Connection, tmp_path: Path, flows: int, is_analyzed: bool
) -> None:
    """One flow with every edge there is, and as many flows as a big store has."""
    connection.execute(FILL.format(flows=flows), [5_000])
    if is_analyzed:
        connection.execute("ANALYZE")
    again = new_file(tmp_path / "store.db")
    assert wrong(again) == {}
    again.close()


async def test_a_store_forgets_statistics_when_it_is_opened(
    tmp_path: Path, clock: VirtualClock
) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(str(path), clock=clock)
    await store.migrate()
    await put(store, clock, *(order(number) for number in range(50)))
    await store.close()
    raw = sqlite3.connect(path)
    raw.execute("ANALYZE")
    assert raw.execute("SELECT count(*) FROM sqlite_stat1").fetchone()[0] > 0
    await store.migrate()
    assert raw.execute("SELECT count(*) FROM sqlite_stat1").fetchone()[0] == 0
    await store.close()
    raw.close()


def test_a_plan_that_walks_or_goes_by_another_index_is_noticed(
    connection: sqlite3.Connection,
) -> None:
    def plan(text: str) -> tuple[str, ...]:
        return plan_of(connection, text)

    assert plan("SELECT * FROM execution AS e WHERE e.worker = 'w'") == ("walks execution",)
    assert plan("SELECT id FROM execution AS e WHERE +e.id = 'w'") == (
        "walks execution by sqlite_autoindex_execution_1",
    )
    loose = "SELECT * FROM edge AS e WHERE e.flow = ?1 AND e.upstream = ?2"
    assert plan(loose) != PLANS["edge_leaving_few"]
