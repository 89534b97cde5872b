"""A page of executions for sweepers that go over all of them: what cannot be read is passed."""

from __future__ import annotations

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution, Query
from flowfabric.core.states import State
from flowfabric.errors import Corrupt
from flowfabric.loggers import logger_of
from flowfabric.store.damage import unreadable_id
from flowfabric.store.protocol import Store

logger = logger_of("flowfabric.sweeping")


async def page_of_heads(
    store: Store, states: tuple[State, ...], after: str, limit: int
) -> tuple[list[Execution], str, int]:
    """The next ones in these states, where to go on (empty: from the beginning), and how many
    cannot be read. One that cannot is named in the log and keeps no other back."""
    asked = limit
    while True:
        query = Query(states=states, after=ExecutionId(after) if after else None, limit=asked)
        try:
            found = await store.find(query)
        except Corrupt as error:
            if asked > 1:
                asked //= 2
                continue
            lost = unreadable_id(error)
            logger.error(
                "execution %s cannot be read",
                lost,
                extra={"execution": lost, "problem": str(error)},
            )
            return [], lost, 1
        return found, found[-1].id if len(found) == asked else "", 0
