"""Starting: what is fixed at the first start, and settings that cannot be right."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from flowfabric.app import App
from flowfabric.core.ids import PartitionCounts
from flowfabric.core.states import PublicState
from flowfabric.engine.duties import Duties
from flowfabric.engine.engine import Engine
from flowfabric.engine.janitor import CHORES
from flowfabric.errors import FlowFabricError, InvalidInput
from flowfabric.store import Store, open_store
from flowfabric.store.queries import migrations
from flowfabric.testing.build import order
from tests.app.stage import eventually
from tests.engine.desk import Desk


@pytest.mark.case("BC-012")
async def test_the_engine_starts_and_stops_on_every_store(store: Store) -> None:
    engine = Engine(store)
    await engine.open()
    duties = Duties(engine)
    duties.start()

    async def has_begun() -> bool:
        return all(health.rounds for health in duties.health())

    await eventually(has_begun)
    names = {health.name for health in duties.health()}
    assert names == {"timekeeper", "dispatcher", *CHORES}
    assert {(health.failures, health.problem) for health in duties.health()} == {(0, "")}
    assert await duties.stop(30) == []
    await engine.close()


@pytest.mark.case("BC-015")
async def test_a_fresh_file_has_every_migration_and_every_table(tmp_path: Path) -> None:
    path = tmp_path / "fresh.db"
    store = open_store(f"sqlite:///{path}")
    await store.migrate()
    await store.close()
    with sqlite3.connect(path) as raw:
        (version,) = raw.execute("PRAGMA user_version").fetchone()
        names = raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        tables = {name for (name,) in names}
    raw.close()
    assert version == len(migrations("sqlite")) > 0
    solo = {"execution", "payload", "attempt", "tag", "idempotency", "lane", "log"}
    assert tables >= solo | {"flow", "edge", "edge_group", "line", "shift", "meta", "document"}


@pytest.mark.case("BC-016")
async def test_stores_keep_what_they_have_and_share_nothing(
    desk: Desk, stranger: Store, store: Store
) -> None:
    id = await desk.completed(result=b"42")
    await desk.engine.close()
    await desk.engine.open()
    assert await desk.engine.read.result(id) == b"42"
    other = Engine(stranger, clock=desk.clock)
    await other.open()
    assert await other.read.describe(id) is None


@pytest.mark.case("BC-021")
async def test_a_fresh_store_has_the_same_partitions_everywhere(store: Store) -> None:
    engine = Engine(store)
    await engine.open()
    assert (engine.counts.flow, engine.counts.budget, engine.counts.quota) == (256, 32, 32)


@pytest.mark.case("BC-026")
@pytest.mark.parametrize(
    "url", ["unknown://x", "", "flows.db", "sqlite://", "sqlite:///x?colour=1"]
)
def test_a_store_that_cannot_be_is_refused_by_name(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        open_store(url)
    assert refused.value.field == "url"
    assert refused.value.hint


@pytest.mark.case("BC-026")
@pytest.mark.parametrize("count", [0, -1, 65_537, True, "256"])
def test_a_count_of_partitions_that_cannot_be_is_refused_by_name(count: int) -> None:
    with pytest.raises(InvalidInput) as refused:
        PartitionCounts(flow=count)
    assert refused.value.field == "partitions.flow"


@pytest.mark.case("BC-026")
def test_a_lane_without_a_name_is_refused() -> None:
    app = App("memory://")
    with pytest.raises(FlowFabricError) as refused:
        app.task(lane="")(print_nothing)
    assert (refused.value.code, refused.value.field) == ("lane_empty", "lane")


def print_nothing() -> None: ...


async def test_work_of_an_earlier_start_goes_on(desk: Desk) -> None:
    id = await desk.submit(order(1))
    await desk.engine.close()
    later = desk.another()
    await later.engine.open()
    lease = await later.take(id)
    await later.engine.complete(lease, b"1")
    assert await later.engine.read.state(id) is PublicState.COMPLETED
