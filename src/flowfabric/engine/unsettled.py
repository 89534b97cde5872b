"""Pages of flows for sweepers: those that are not settled, which most of them go over, or all."""

from __future__ import annotations

import msgspec

from flowfabric.core.flow.model import Flow
from flowfabric.core.flow.views import FlowQuery
from flowfabric.core.ids import parse_flow_id
from flowfabric.errors import Corrupt, InvalidInput
from flowfabric.loggers import logger_of
from flowfabric.store.protocol import Store

logger = logger_of("flowfabric.sweeping")


async def unsettled_flows(store: Store, after: str, limit: int) -> tuple[list[Flow], str, int]:
    """The next flows that are not settled."""
    return await page_of_flows(store, FlowQuery(unsettled=True, after=after, limit=limit))


async def page_of_flows(store: Store, query: FlowQuery) -> tuple[list[Flow], str, int]:
    """The next flows, where to go on (empty: from the beginning), and how many cannot be read.

    One that cannot be read is named in the log and keeps no other back.
    """
    while True:
        try:
            found = await store.find_flows(query)
        except Corrupt as error:
            if query.limit > 1:
                query = msgspec.structs.replace(query, limit=query.limit // 2)
                continue
            lost = str((error.details or {}).get("flow", ""))
            logger.error(
                "flow %s cannot be read", lost, extra={"flow": lost, "problem": str(error)}
            )
            return [], lost, 1
        named = [flow for flow in found if _has_a_name(flow)]
        cursor = found[-1].id if len(found) == query.limit else ""
        return named, cursor, len(found) - len(named)


def _has_a_name(flow: Flow) -> bool:
    """Whether its id is one that a flow can have; nothing can be asked about any other."""
    try:
        parse_flow_id(flow.id)
    except InvalidInput:
        logger.error("%r is not a flow id", flow.id, extra={"flow": flow.id})
        return False
    return True
