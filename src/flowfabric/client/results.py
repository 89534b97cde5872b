"""The waiting room: many callers wait for results, few calls ask for them.

In this process the end of an execution is heard as a hint. When another process has written, the
log is read from where it was left: it never misses a line, so no end is missed either. Polling
the log now and then is the net under both. What is submitted while the log is followed cannot have
ended unheard, so waiting for it begins without a look at the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import islice

from flowfabric.client.idle_waits import IdleWaits
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Ended, Feed
from flowfabric.core.refusal import not_found
from flowfabric.core.states import TERMINAL
from flowfabric.engine.engine import Engine
from flowfabric.engine.hints import Hint
from flowfabric.engine.slots import slot_here
from flowfabric.errors import CursorExpired, StoreMismatch, StoreUnavailable
from flowfabric.forking import begin_here_and_in_children
from flowfabric.loggers import logger_of

logger = logger_of("flowfabric.client")

NET_SECONDS = 5.0
BATCH = 500
FEED = 1_000
EXPECTED_LIMIT = 50_000


class Results:
    """One per client. `wait` answers when the execution has ended."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        begin_here_and_in_children(self._begin)

    def _begin(self) -> None:
        # Any number may wait for one execution, and each may stop to.
        self._waiting: dict[ExecutionId, dict[asyncio.Future[Ended], None]] = {}
        self._asked: dict[ExecutionId, None] = {}
        self._expected: dict[ExecutionId, None] = {}
        self._looking: asyncio.Task[None] | None = None
        self._follower: asyncio.Task[None] | None = None
        self._foreign = asyncio.Event()
        self._cursor = ""
        self._idle_waits = IdleWaits(self._engine)

    def expect(self, ids: Sequence[ExecutionId]) -> None:
        """These will be submitted now for the first time: hear of their ends from the beginning."""
        if self._cursor:
            self._expected.update(dict.fromkeys(ids))
            for id in list(islice(self._expected, max(len(self._expected) - EXPECTED_LIMIT, 0))):
                del self._expected[id]

    def forget(self, ids: Iterable[ExecutionId]) -> None:
        """They were not made now, or nobody knows: whether they have ended must be looked up."""
        for id in ids:
            self._expected.pop(id, None)

    async def wait(self, id: ExecutionId) -> Ended:
        """The execution with its result, once it is over. Raises when there is none such."""
        self._follow()
        future: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(id, {})[future] = None
        if id not in self._expected:
            self._ask(id)
        try:
            if (slot := slot_here()) is None:
                return await future
            async with slot.given_up():
                return await future
        except asyncio.CancelledError:
            self._forget(id, future)
            raise

    async def close(self) -> None:
        self._engine.hints.unsubscribe(self._hear)
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.wait([self._follower])
            self._follower = None
        if self._looking is not None:
            await asyncio.wait([self._looking])
        for id in list(self._waiting):
            self._fail(id, StoreUnavailable("the app was closed before the execution ended"))

    def _follow(self) -> None:
        """Start to listen before the first look: what ends in between is then not missed."""
        if self._follower is not None and not self._follower.done():
            return
        self._follower = asyncio.get_running_loop().create_task(self._follow_log())
        self._engine.hints.subscribe(self._hear)

    def _hear(self, hint: Hint) -> None:
        if hint.foreign:
            self._foreign.set()
        self._deliver(hint.finished)
        self._heard(hint.ended)

    def _heard(self, ids: Iterable[ExecutionId]) -> None:
        for id in ids:
            self._expected.pop(id, None)
            if id in self._waiting:
                self._ask(id)

    def _ask(self, id: ExecutionId) -> None:
        """Look at it soon, together with all others that somebody asks about meanwhile."""
        self._asked[id] = None
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        try:
            while self._asked:
                ids = list(islice(self._asked, BATCH))
                for id in ids:
                    del self._asked[id]
                still = [id for id in ids if id in self._waiting]
                if still:
                    await self._look_at(still)
        finally:
            self._looking = None

    async def _look_at(self, ids: Sequence[ExecutionId]) -> None:
        try:
            ends = await self._engine.read.endings(ids)
        except (StoreUnavailable, StoreMismatch) as error:
            for id in ids:
                self._fail(id, error)
            return
        except Exception as error:
            await self._look_at_each(ids, error)
            return
        for id, found in zip(ids, ends, strict=True):
            if found is None:
                self._fail(id, not_found(id))
            elif found.state in TERMINAL:
                self._deliver([found])

    async def _look_at_each(self, ids: Sequence[ExecutionId], error: Exception) -> None:
        """One of them cannot be read: only who waits for that one is to hear of it."""
        if len(ids) == 1:
            self._fail(ids[0], error)
            return
        for id in ids:
            await self._look_at([id])

    def _deliver(self, ends: Iterable[Ended]) -> None:
        for ended in ends:
            self._expected.pop(ended.id, None)
            for future in self._waiting.pop(ended.id, ()):
                if not future.done():
                    future.set_result(ended)

    def _fail(self, id: ExecutionId, error: Exception) -> None:
        for future in self._waiting.pop(id, ()):
            if not future.done():
                future.set_exception(error)

    def _forget(self, id: ExecutionId, future: asyncio.Future[Ended]) -> None:
        waiting = self._waiting.get(id, {})
        waiting.pop(future, None)
        if not waiting:
            self._waiting.pop(id, None)

    async def _follow_log(self) -> None:
        while True:
            try:
                await self._read_log()
                await self._idle_waits.look(self._waiting)
            except CursorExpired:
                self._lose_track()
            except StoreMismatch as error:
                # No later look can find an end in a store that is not ours any more.
                for id in list(self._waiting):
                    self._fail(id, error)
                return
            except Exception as error:
                # Whatever it was, who waits for work done elsewhere depends on this.
                logger.warning("could not read the log: %r", error)
                await asyncio.sleep(NET_SECONDS)
            try:
                async with asyncio.timeout(NET_SECONDS):
                    await self._foreign.wait()
            except TimeoutError:
                continue

    async def _read_log(self) -> None:
        self._foreign.clear()
        if not self._cursor:
            newest = await self._engine.read.events(Feed(newest=True))
            self._lose_track()
            self._cursor = newest[-1].cursor if newest else ""
            return
        ends = tuple(TERMINAL)
        while lines := await self._engine.read.events(
            Feed(after=self._cursor, states=ends, limit=FEED)
        ):
            self._cursor = lines[-1].cursor
            self._heard(line.execution for line in lines)
            if len(lines) < FEED:
                return

    def _lose_track(self) -> None:
        """Ends may have been missed: ask about everything that somebody waits for."""
        self._cursor = ""
        self._expected.clear()
        for id in self._waiting:
            self._ask(id)
