"""A flow that cannot be read is named to who lists flows; who asks for others gets them."""

from __future__ import annotations

import sqlite3

import asyncpg
import pytest

from flowfabric.core.flow.model import FlowState
from flowfabric.core.flow.views import FlowQuery
from flowfabric.errors import Corrupt
from flowfabric.store import Store
from flowfabric.store.postgres import PostgresStore
from flowfabric.store.sqlite import SqliteStore
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.flow_steps import put_flow
from flowfabric.testing.flows import FLOW, flow_id, plan


async def melt(store: Store) -> None:
    """Past the store, as a raw client could."""
    if isinstance(store, SqliteStore):
        with sqlite3.connect(store.path) as raw:
            raw.execute("UPDATE flow SET state = 'melted' WHERE id = ?", (FLOW,))
        raw.close()
    elif isinstance(store, PostgresStore):
        connection = await asyncpg.connect(store.address.dsn)
        table = f'"{store.address.schema}".flow'
        await connection.execute(f"UPDATE {table} SET state = 'melted' WHERE id = $1", FLOW)  # noqa: S608
        await connection.close()


@pytest.mark.parametrize("store_kind", ["sqlite", "postgres"])
async def test_a_flow_that_cannot_be_read_is_named(store: Store, clock: VirtualClock) -> None:
    other = flow_id(2)
    for id in (FLOW, other):
        await put_flow(store, clock, plan("", flow=id))
    await melt(store)
    # In which state it is cannot be known, so it is missing from no list of a state.
    for query in (FlowQuery(), FlowQuery(states=(FlowState.OPEN,))):
        with pytest.raises(Corrupt, match=f"flow {FLOW} cannot be read"):
            await store.find_flows(query)
    after = await store.find_flows(FlowQuery(after=FLOW))
    assert [flow.id for flow in after] == [other]
