"""A page of flows that are not settled: what the sweepers of flows go over, and no other flow."""

from __future__ import annotations

import logging

from flowfabric.core.flow.model import Flow
from flowfabric.core.flow.views import FlowQuery
from flowfabric.errors import Corrupt
from flowfabric.store.protocol import Store

logger = logging.getLogger("flowfabric.sweeping")


async def unsettled_flows(store: Store, after: str, limit: int) -> tuple[list[Flow], str, int]:
    """The next flows, where to go on (empty: from the beginning), and how many cannot be read.

    One that cannot be read is named in the log and keeps no other back.
    """
    asked = limit
    while True:
        try:
            query = FlowQuery(unsettled=True, after=after, limit=asked)
            found = await store.find_flows(query)
        except Corrupt as error:
            if asked > 1:
                asked //= 2
                continue
            lost = str((error.details or {}).get("flow", ""))
            logger.error(
                "flow %s cannot be read", lost, extra={"flow": lost, "problem": str(error)}
            )
            return [], lost, 1
        return found, found[-1].id if len(found) == asked else "", 0
