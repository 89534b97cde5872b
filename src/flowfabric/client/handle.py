"""Handle: one execution from the outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from flowfabric.client.failing import error_of
from flowfabric.client.public_ids import shown
from flowfabric.client.results import Results
from flowfabric.core.attempt_record import AttemptRecord
from flowfabric.core.duration import duration_ms
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


class Handle(Generic[R_co]):
    """An execution, known by its id; every verb asks the store."""

    def __init__(
        self, id: ExecutionId, engine: Engine, results: Results, decode: Callable[[bytes], R_co]
    ) -> None:
        self._id = id
        self._engine = engine
        self._results = results
        self._decode = decode

    @property
    def id(self) -> str:
        """`<partition>-<uuid>`, which a shell and a URL take without quotes."""
        return public_id(self._id)

    def __repr__(self) -> str:
        return f"Handle({self.id!r})"

    async def result(self, timeout_seconds: float | None = None) -> R_co:
        """Wait for the result of the task; raises if the execution did not succeed."""
        if timeout_seconds is None:
            return await self._value(await self._results.wait(self._id))
        limit = duration_ms(timeout_seconds, "timeout_seconds") / 1000
        try:
            async with asyncio.timeout(limit):
                ended = await self._results.wait(self._id)
        except TimeoutError:
            raise ResultTimeout(
                f"execution {self.id} has not ended within {limit} s",
                hint="it goes on; call `result()` again, or `explain()` for what it waits for",
            ) from None
        return await self._value(ended)

    async def _value(self, ended: Ended) -> R_co:
        if SHAPE[ended.state].outcome is Outcome.SUCCESS:
            return self._decode(ended.result)
        raise await error_of(self._engine, ended)

    async def attempts(self) -> list[AttemptRecord]:
        """Every attempt, oldest first, with the exception that ended it and what it logged."""
        return [shown(each) for each in await self._engine.read.attempt_records(self._id)]

    async def status(self) -> Snapshot:
        """The execution as it is now."""
        found = await self._engine.read.describe(self._id)
        if found is None:
            raise not_found(self._id)
        return shown(found)

    async def cancel(
        self, reason: str = "cancelled by the caller", *, request: str | None = None
    ) -> PublicState:
        """End it as cancelled. A running task is interrupted; late results are refused.

        To repeat the call after an error, pass the same `request` both times: an execution that was
        replayed in between is then not cancelled again.
        """
        return await self._engine.cancel(self._id, reason, request=request)

    async def events(self) -> list[Event]:
        """What happened to it so far, oldest first."""
        events: list[Event] = []
        while True:
            after = events[-1].cursor if events else ""
            feed = Feed(execution=self._id, after=after, limit=HISTORY_PAGE)
            page = await self._engine.read.events(feed)
            events += page
            if len(page) < HISTORY_PAGE:
                return [shown(each) for each in events]

    async def explain(self) -> Explanation:
        """Why it is not running, or where it runs: `print((await handle.explain()).sentence)`."""
        return shown(await self._engine.read.explain(self._id))
