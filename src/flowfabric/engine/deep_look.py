"""A deep look: everything beside the heads, what is over, and what the database knows of itself.

It reads every record once, a page at a time, and repairs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flowfabric.core.flow.views import FlowQuery
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution, Want
from flowfabric.core.states import State
from flowfabric.engine.diagnosis import Kind
from flowfabric.engine.head_pages import page_of_heads
from flowfabric.engine.unsettled import page_of_flows
from flowfabric.errors import Corrupt
from flowfabric.store.protocol import Store
from flowfabric.store.upkeep import Inspectable

PAGE = 500
EVERYTHING = tuple(State)

Found = Callable[[Kind, str, str], None]


class DeepLook:
    def __init__(self, store: Store, found: Found) -> None:
        self._store = store
        self._found = found

    async def examine(self) -> None:
        if isinstance(self._store, Inspectable):
            for damage in await self._store.inspect():
                self._found(Kind.UNREADABLE, damage.subject, damage.sentence)
        await self._executions()
        await self._flows()

    async def _executions(self) -> None:
        after = ""
        while True:
            heads, cursor, lost = await page_of_heads(self._store, EVERYTHING, after, PAGE)
            if lost:
                self._found(Kind.UNREADABLE, cursor, "it cannot be read")
            await self._beside(heads)
            if not cursor or cursor <= after:
                return
            after = cursor

    async def _beside(self, heads: Sequence[Execution]) -> None:
        """Payloads, tags and attempts; of many, only those that cannot be read are asked again."""
        ids = [head.id for head in heads]
        if not ids:
            return
        try:
            await self._read(ids)
        except Corrupt as error:
            if len(ids) == 1:
                self._found(Kind.UNREADABLE, ids[0], str(error))
                return
            middle = len(ids) // 2
            await self._beside(heads[:middle])
            await self._beside(heads[middle:])

    async def _read(self, ids: Sequence[ExecutionId]) -> None:
        await self._store.load(Want(ids=ids, payload=True, tags=True, attempts=True))
        await self._store.endings(ids)

    async def _flows(self) -> None:
        after = ""
        while True:
            query = FlowQuery(after=after, limit=PAGE)
            flows, cursor, lost = await page_of_flows(self._store, query)
            if lost and not flows:
                self._found(Kind.UNREADABLE, cursor or "a flow", "it cannot be read")
            if not cursor or cursor <= after:
                return
            after = cursor
