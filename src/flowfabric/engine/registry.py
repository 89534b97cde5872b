"""The workers of a store as they register themselves: read, written, and removed when silent."""

from __future__ import annotations

from collections.abc import Sequence

from flowfabric.core.documents import (
    AnyDocument,
    DocumentQuery,
    PutDone,
    remove,
    written,
)
from flowfabric.core.model import Execution
from flowfabric.core.registry import KIND, WorkerRecord, heartbeat, live, unserved
from flowfabric.core.states import CLAIMABLE
from flowfabric.store.clock import FollowingClock
from flowfabric.store.protocol import Store

PAGE = 500


class Registry:
    def __init__(self, store: Store, clock: FollowingClock) -> None:
        self._store = store
        self._clock = clock

    def register(self, name: str) -> Registration:
        """A worker that is about to begin; it is listed from its first heartbeat on."""
        return Registration(self._store, self._clock, name)

    async def live(self, namespace: str) -> list[WorkerRecord]:
        """The live workers of a namespace, by the name under which each is registered."""
        found: list[AnyDocument] = []
        while True:
            after = found[-1].name if found else ""
            query = DocumentQuery(kind=KIND, namespace=namespace, after=after, limit=PAGE)
            page = await self._store.documents(query)
            found += page
            if len(page) < PAGE:
                return live(found, self._clock.now_ms())

    async def unserved(self, row: Execution) -> str:
        """Why no live worker will take this row; empty if one will, or if it is not for taking."""
        if row.state not in CLAIMABLE:
            return ""
        return unserved(row.lane, row.kind, await self.live(row.namespace))


class Registration:
    """The document of one worker, from its first heartbeat to its end."""

    def __init__(self, store: Store, clock: FollowingClock, name: str) -> None:
        self._store = store
        self._clock = clock
        self._name = name
        self._seen: AnyDocument | None = None

    async def beat(self, worker: WorkerRecord) -> None:
        """Say that it lives; one trip, unless somebody else wrote the document meanwhile."""
        for _ in range(2):
            now_ms = self._clock.now_ms()
            put = heartbeat(self._seen, worker, self._name)
            (answer,) = await self._store.put([put], now_ms, passing=True)
            if isinstance(answer, PutDone):
                self._seen = written(put, now_ms)
                return
            # Removed as silent, or an answer of ours was lost.
            self._seen = answer.there

    async def end(self) -> None:
        if self._seen is not None:
            await self._store.put([remove(self._seen)], self._clock.now_ms(), passing=True)
            self._seen = None


async def remove_silent(store: Store, silent: Sequence[AnyDocument], now_ms: int) -> int:
    """Remove workers whose time has come; one that is heard of meanwhile stays."""
    if not silent:
        return 0
    answers = await store.put([remove(each) for each in silent], now_ms, passing=True)
    return sum(isinstance(answer, PutDone) for answer in answers)
