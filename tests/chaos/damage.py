"""Records that cannot be read for a while. No test lives here.

What is spoilt is a cell that nothing ever changes, so that it can be put right while everything
goes on: which ends satisfy an edge.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3

import asyncpg

from flowfabric.core.flow.model import Edge
from flowfabric.core.flow.views import FlowQuery, Sight
from flowfabric.core.ids import FlowId
from flowfabric.errors import StoreUnavailable
from flowfabric.store import Store
from tests.chaos.pace import rest
from tests.corrupter import raw_client

TROUBLE = (OSError, StoreUnavailable, asyncpg.PostgresError, sqlite3.OperationalError)
SECONDS = (1.0, 15.0)
AGAIN_SECONDS = 0.2
FLOWS = 20


class Damage:
    def __init__(self, store: Store, chance: random.Random) -> None:
        self._store = store
        self._chance = chance
        self._spoilt: dict[Edge, float] = {}

    @property
    def flows(self) -> set[FlowId]:
        """Those with a record that cannot be read now."""
        return {edge.flow for edge in self._spoilt}

    async def strike(self) -> int:
        """Spoil an edge of a flow that is under way; answers how many were."""
        flows = await self._store.find_flows(FlowQuery(unsettled=True, limit=FLOWS))
        if not flows:
            return 0
        flow = self._chance.choice(flows)
        edges = (await self._store.graph([Sight(flow=flow.id, whole=True)]))[0].edges
        sound = [edge for edge in edges if edge not in self._spoilt]
        if not sound:
            return 0
        edge = self._chance.choice(sound)
        now = asyncio.get_running_loop().time()
        self._spoilt[edge] = now + self._chance.uniform(*SECONDS)
        try:
            await raw_client(self._store).write(edge, "kind", "melted")
        except TROUBLE:
            return 0
        return 1

    async def heal(self, *, all_of_it: bool = False) -> None:
        """Put right what has been wrong for long enough."""
        now = asyncio.get_running_loop().time()
        over = [edge for edge, until in self._spoilt.items() if all_of_it or until <= now]
        for edge in over:
            while not await self._is_healed(edge):
                await rest(AGAIN_SECONDS)
            del self._spoilt[edge]

    async def _is_healed(self, edge: Edge) -> bool:
        try:
            await raw_client(self._store).write(edge, "kind", edge.kind)
        except TROUBLE:
            return False
        return True
