"""Rivals on one flow: each with an engine in a thread of its own and, where that can be, a store of
its own, as another process would have. No test lives here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from zlib import crc32

import msgspec

from flowfabric.core.flow.model import Line, Unreadable
from flowfabric.core.flow.views import Pending, Sight, Turn, View
from flowfabric.core.transition import Applied, Changeset, Rejected, Transition
from flowfabric.store import Store, open_store
from flowfabric.testing import FaultyStore
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import in_threads
from tests.flow.desk import FlowDesk
from tests.servers import store_url

# Far beyond what anything here takes: only a test that would hang for ever meets it.
PATIENCE_SECONDS = 60.0

Work = Callable[[FlowDesk], Awaitable[object]]
Dress = Callable[[Store], Store]


def _plain(store: Store) -> Store:
    return store


class Stage:
    """Where the rivals of one test meet."""

    def __init__(self, desk: FlowDesk, kind: str, path: Path) -> None:
        self.desk = desk
        self._kind = kind
        self._path = path

    @property
    def clock(self) -> VirtualClock:
        return self.desk.clock

    async def store(self) -> Store:
        if self._kind == "memory":
            return self.desk.store
        own = open_store(store_url(self._kind, self._path / "store.db"), clock=self.clock)
        await own.migrate()
        return own

    async def leave(self, store: Store) -> None:
        if store is not self.desk.store:
            await store.close()

    async def together(self, *works: Work) -> None:
        """Each work with a desk of its own, begun at the same moment."""
        await self.each([(work, _plain) for work in works])

    async def each(self, rivals: Sequence[tuple[Work, Dress]]) -> None:
        async def play(number: int) -> None:
            work, dressed = rivals[number]
            store = await self.store()
            try:
                desk = FlowDesk(dressed(store), self.clock)
                await desk.engine.open()
                await work(desk)
            finally:
                await self.leave(store)

        await asyncio.to_thread(in_threads, len(rivals), play)

    async def overtaken(
        self, slow: Work, fast: Work, *, write: int = 1, dressed: Dress = _plain
    ) -> None:
        """The slow one decides; before its write, whichever it is, the fast one is through."""
        held = Held(write)

        async def overtake(desk: FlowDesk) -> None:
            assert await asyncio.to_thread(held.has_looked.wait, PATIENCE_SECONDS)
            try:
                await fast(desk)
            finally:
                held.may_go.set()

        await self.each([(slow, lambda store: held.around(dressed(store))), (overtake, _plain)])
        assert held.has_looked.is_set()


class Held:
    """Holds back one write, counted from one, until others are through."""

    def __init__(self, write: int) -> None:
        self.has_looked = threading.Event()
        self.may_go = threading.Event()
        self._left = write

    def around(self, store: Store) -> Store:
        return _HeldStore(store, self)

    async def writes(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.has_looked.set()
            assert await asyncio.to_thread(self.may_go.wait, PATIENCE_SECONDS)


class _HeldStore(FaultyStore):
    def __init__(self, inner: Store, held: Held) -> None:
        super().__init__(inner)
        self._held = held

    async def commit(self, changes: Changeset, now_ms: int) -> bool:
        await self._held.writes()
        return await self.inner.commit(changes, now_ms)

    async def commit_each(self, batch: Sequence[Changeset], now_ms: int) -> list[bool]:
        await self._held.writes()
        return await self.inner.commit_each(batch, now_ms)

    async def apply(
        self, transitions: Sequence[Transition], now_ms: int, *, urgent: bool = False
    ) -> list[Applied | Rejected]:
        await self._held.writes()
        return await self.inner.apply(transitions, now_ms, urgent=urgent)


class Forgetful(FaultyStore):
    """Takes flows without keeping them: any other dispatcher takes them, too."""

    async def pending(self, turn: Turn) -> list[Pending | Unreadable]:
        return await self.inner.pending(msgspec.structs.replace(turn, until_ms=0))

    async def commit_each(self, batch: Sequence[Changeset], now_ms: int) -> list[bool]:
        return await self.inner.commit_each([_unkept(changes) for changes in batch], now_ms)


def _unkept(changes: Changeset) -> Changeset:
    flows = [
        msgspec.structs.replace(each, patch={**each.patch, "busy_until_ms": 0})
        for each in changes.flows
    ]
    return msgspec.structs.replace(changes, flows=flows)


class Greedy(Forgetful):
    """Sees only its own share of the lines, and lets all others look before it first writes."""

    def __init__(self, inner: Store, share: tuple[int, int], all_looked: threading.Barrier) -> None:
        super().__init__(inner)
        self._share = share
        self._all_looked: threading.Barrier | None = all_looked

    async def pending(self, turn: Turn) -> list[Pending | Unreadable]:
        found = await super().pending(turn)
        mine = [Pending(e.flow, self._mine(e.lines)) for e in found if isinstance(e, Pending)]
        return [each for each in mine if each.lines]

    async def graph(self, sights: Sequence[Sight]) -> list[View]:
        views = await self.inner.graph(sights)
        return [msgspec.structs.replace(view, lines=self._mine(view.lines)) for view in views]

    async def commit_each(self, batch: Sequence[Changeset], now_ms: int) -> list[bool]:
        if self._all_looked is not None:
            waiting, self._all_looked = self._all_looked, None
            await asyncio.to_thread(waiting.wait, PATIENCE_SECONDS)
        return await super().commit_each(batch, now_ms)

    def _mine(self, lines: Sequence[Line]) -> list[Line]:
        number, count = self._share
        return [line for line in lines if crc32(line.id.encode()) % count == number]
