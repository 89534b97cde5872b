"""What an app lists page by page, besides executions: flows, workers, lanes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from flowfabric.client.handle import Connect
from flowfabric.core.flow.model import Flow
from flowfabric.core.flow.views import FlowQuery
from flowfabric.core.registry import WorkerRecord
from flowfabric.engine.lane_reading import LaneRecord

PAGE = 500


async def flow_pages(connect: Connect, query: FlowQuery) -> AsyncIterator[list[Flow]]:
    engine = (await connect()).engine
    after: str | None = ""
    while after is not None:
        wanted = msgspec.structs.replace(query, after=after, limit=PAGE)
        page = await engine.flows.read.find(wanted)
        yield page.items
        after = page.cursor


async def worker_pages(connect: Connect) -> AsyncIterator[list[WorkerRecord]]:
    engine = (await connect()).engine
    yield await engine.registry.live(engine.namespace)


async def lane_pages(connect: Connect) -> AsyncIterator[list[LaneRecord]]:
    engine = (await connect()).engine
    yield await engine.read.lanes(engine.namespace)
