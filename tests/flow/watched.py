"""Stores that show what a dispatcher asks and writes, or refuse it; and what it logs. No tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.views import Sight, View
from flowfabric.core.model import Value
from flowfabric.core.transition import Changeset
from flowfabric.errors import FlowFabricError
from flowfabric.store import Store
from flowfabric.testing import FaultyStore, Verb
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.flows import FLOW


class Watched(FaultyStore):
    """Keeps every look and every changeset."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.sights: list[Sight] = []
        self.changes: list[Changeset] = []

    async def graph(self, sights: Sequence[Sight]) -> list[View]:
        self.sights += sights
        return await super().graph(sights)

    async def commit(self, changes: Changeset, now_ms: int) -> bool:
        self.changes.append(changes)
        return await super().commit(changes, now_ms)

    async def commit_each(self, batch: Sequence[Changeset], now_ms: int) -> list[bool]:
        self.changes += batch
        return await super().commit_each(batch, now_ms)


class Refusing(FaultyStore):
    """Raises an error of the test's choice, so many times, when it is asked this."""

    def __init__(self, inner: Store, verb: Verb, error: FlowFabricError, times: int = 1) -> None:
        super().__init__(inner)
        self._verb = verb
        self._error = error
        self.times = times

    async def graph(self, sights: Sequence[Sight]) -> list[View]:
        self._refuse(Verb.GRAPH)
        return await super().graph(sights)

    async def commit_each(self, batch: Sequence[Changeset], now_ms: int) -> list[bool]:
        self._refuse(Verb.COMMIT_EACH)
        return await super().commit_each(batch, now_ms)

    def _refuse(self, verb: Verb) -> None:
        if verb is self._verb and self.times:
            self.times -= 1
            self.calls[verb] += 1
            raise self._error


class Meddler(FaultyStore):
    """Somebody else changes the flow just before a commit, so many times."""

    def __init__(self, inner: Store, times: int) -> None:
        super().__init__(inner)
        self.times = times

    async def commit_each(self, batch: Sequence[Changeset], now_ms: int) -> list[bool]:
        if self.times:
            self.times -= 1
            flow = (await self.inner.graph([Sight(flow=FLOW)]))[0].flow
            assert flow is not None
            change = FlowPatch(FLOW, flow.rev, self.patch())
            await self.inner.commit(Changeset(flows=[change]), now_ms)
        return await super().commit_each(batch, now_ms)

    def patch(self) -> dict[str, Value]:
        return {}


class TickingClock(VirtualClock):
    """Every look at it moves it on."""

    def now_ms(self) -> int:
        return self.advance(1)


def told(caplog: pytest.LogCaptureFixture, *names: str) -> list[dict[str, object]]:
    """The fields of those names, of every record that has all of them."""
    rows = [vars(record) for record in caplog.records]
    return [{name: row[name] for name in names} for row in rows if _has(row, names)]


def _has(row: dict[str, object], names: Iterable[str]) -> bool:
    return all(name in row for name in names)
