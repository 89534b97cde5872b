"""Handle: one execution from the outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from flowfabric.client.failing import error_of
from flowfabric.client.listing import Listing
from flowfabric.client.public_ids import shown
from flowfabric.client.results import Results
from flowfabric.core.attempt_record import AttemptRecord
from flowfabric.core.duration import Span, duration_ms
from flowfabric.core.explain import Explanation
from flowfabric.core.ids import ExecutionId, public_id
from flowfabric.core.model import Ended, Event, Feed
from flowfabric.core.refusal import not_found
from flowfabric.core.states import SHAPE, Outcome, PublicState
from flowfabric.engine.engine import Engine
from flowfabric.engine.reading import Snapshot
from flowfabric.errors import ResultTimeout

R_co = TypeVar("R_co", covariant=True)

HISTORY_PAGE = 1_000


class Desk(Protocol):
    """Where a handle asks: the engine of an app, and the waiting room of this event loop."""

    @property
    def engine(self) -> Engine: ...
    @property
    def results(self) -> Results: ...


Connect = Callable[[], Awaitable[Desk]]


class Handle(Generic[R_co]):
    """Refers to an execution by its id; holds nothing that could get stale, and connects to the
    store when it is used."""

    def __init__(self, id: ExecutionId, connect: Connect, decode: Callable[[bytes], R_co]) -> None:
        self._known_id = id
        self._connect = connect
        self._decode = decode

    @property
    def _id(self) -> ExecutionId:
        """Looked at only after connecting: the id of a named member depends on the store."""
        return self._known_id

    @property
    def id(self) -> str:
        """`<partition>-<uuid>`, which a shell and a URL take without quotes."""
        return public_id(self._id)

    def __repr__(self) -> str:
        return f"Handle({self.id!r})"

    # -- waiting ----------------------------------------------------------------------------

    async def result(self, timeout: Span | None = None) -> R_co:
        """Wait for the end. Returns what the task returned, or raises how else it ended."""
        desk = await self._connect()
        ended = await self._end(desk, timeout)
        if SHAPE[ended.state].outcome is Outcome.SUCCESS:
            return self._decode(ended.result)
        raise await error_of(desk.engine, ended)

    async def wait(self, timeout: Span | None = None) -> Snapshot:
        """Wait for the end, however it ends; answers what is known about it then."""
        await self._end(await self._connect(), timeout)
        return await self.status()

    async def _end(self, desk: Desk, timeout: Span | None) -> Ended:
        if timeout is None:
            return await desk.results.wait(self._id)
        limit = duration_ms(timeout, "timeout") / 1000
        try:
            async with asyncio.timeout(limit):
                return await desk.results.wait(self._id)
        except TimeoutError:
            raise ResultTimeout(
                f"execution {self.id} has not ended within {limit} s",
                hint="it goes on; call `result()` again, or `explain()` for what it waits for",
            ) from None

    # -- reading ----------------------------------------------------------------------------

    async def status(self) -> Snapshot:
        """What is known about it now."""
        found = await (await self._connect()).engine.read.describe(self._id)
        if found is None:
            raise not_found(self._id)
        return shown(found)

    async def explain(self) -> Explanation:
        """Why it is not running, or what it does: `print((await handle.explain()).sentence)`."""
        return shown(await (await self._connect()).engine.read.explain(self._id))

    def attempts(self) -> Listing[AttemptRecord]:
        """Every attempt, oldest first, with the exception that ended it and what it logged."""
        return Listing(self._attempt_pages)

    def events(self) -> Listing[Event]:
        """What happened to it so far, oldest first."""
        return Listing(self._event_pages)

    async def _attempt_pages(self) -> AsyncIterator[list[AttemptRecord]]:
        yield await self._read_attempts()

    async def _read_attempts(self) -> list[AttemptRecord]:
        engine = (await self._connect()).engine
        return [shown(each) for each in await engine.read.attempt_records(self._id)]

    async def _event_pages(self) -> AsyncIterator[list[Event]]:
        after, is_full = "", True
        while is_full:
            page = await self._read_events(after)
            yield page
            is_full = len(page) == HISTORY_PAGE
            after = page[-1].cursor if page else ""

    async def _read_events(self, after: str) -> list[Event]:
        engine = (await self._connect()).engine
        feed = Feed(execution=self._id, after=after, limit=HISTORY_PAGE)
        return [shown(each) for each in await engine.read.events(feed)]

    # -- changing ---------------------------------------------------------------------------

    async def cancel(
        self, reason: str = "cancelled by the caller", *, request: str | None = None
    ) -> PublicState:
        """End it as cancelled. A running task is interrupted; late results are refused.

        To repeat the call after an error, pass the same `request` to both: then what was replayed
        meanwhile is not cancelled again.
        """
        engine = (await self._connect()).engine
        return await engine.cancel(self._id, reason, request=request)

    async def replay(
        self, reason: str = "", *, downstream: bool = False, request: str | None = None
    ) -> PublicState:
        """Run it again after it has ended; `downstream`, with all that depended on its end.

        To repeat the call after an error, pass the same `request` to both: then it runs again once.
        """
        engine = (await self._connect()).engine
        return await engine.replay(self._id, reason, downstream=downstream, request=request)

    async def reprioritize(self, priority: int, *, request: str | None = None) -> None:
        """Move it in the queue that it waits in: the highest priority goes first."""
        engine = (await self._connect()).engine
        await engine.change_priority(self._id, priority, request=request)

    async def pause(self, reason: str = "", *, request: str | None = None) -> PublicState:
        """Keep it from starting until `resume`; refused while it runs and after its end."""
        return await (await self._connect()).engine.pause(self._id, reason, request=request)

    async def resume(self, *, request: str | None = None) -> PublicState:
        """Let it start again after `pause`; whatever else it waits for still holds it."""
        return await (await self._connect()).engine.resume(self._id, request=request)
