"""Found: the executions that match, to be listed, counted, cancelled, replayed or purged."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec

from flowfabric.client.bulk import PER_SECOND, Bulk, Changed
from flowfabric.client.handle import Connect
from flowfabric.client.listing import Listing
from flowfabric.client.public_ids import shown
from flowfabric.core import names
from flowfabric.core.duration import Span, duration_ms, instant_ms
from flowfabric.core.ids import parse_flow_id
from flowfabric.core.model import Execution, Query
from flowfabric.core.states import PUBLIC, TERMINAL, PublicState, State
from flowfabric.engine.engine import Engine
from flowfabric.engine.reading import Snapshot
from flowfabric.errors import InvalidInput

PAGE = 500

Progress = Callable[[Changed], None]
States = PublicState | State | str | Iterable[PublicState | State | str]


class Conditions(NamedTuple):
    """What is looked for; `back_ms`: submitted within so long before it is asked."""

    query: Query
    back_ms: int | None = None

    @property
    def is_everything(self) -> bool:
        return self == Conditions(Query())

    def now(self, engine: Engine) -> Query:
        """The query for the first page; a span counts back from now."""
        query = msgspec.structs.replace(self.query, namespace=engine.namespace, limit=PAGE)
        if self.back_ms is None:
            return query
        since_ms = engine.clock.now_ms() - self.back_ms
        return msgspec.structs.replace(query, since_ms=since_ms)


def conditions(
    *,
    state: States | None,
    task: str | None,
    lane: str | None,
    tags: Mapping[str, str] | None,
    since: datetime | Span | None,
    flow: str | None,
) -> Conditions:
    """Checked; what is None is no condition."""
    back_ms, since_ms = None, None
    if isinstance(since, datetime):
        since_ms = instant_ms(since, "since")
    elif since is not None:
        back_ms = duration_ms(since, "since")
    query = Query(
        kind=None if task is None else names.task_name(task),
        lane=None if lane is None else names.lane_name(lane),
        states=() if state is None else _states(state),
        tags={} if tags is None else names.tags(tags),
        flow=None if flow is None else parse_flow_id(flow),
        since_ms=since_ms,
    )
    return Conditions(query, back_ms)


def _states(given: States) -> tuple[State, ...]:
    """Some at least: an empty choice would match everything."""
    found = tuple(_each_state(given))
    if not found:
        raise InvalidInput(
            "the list of states is empty", field="state", hint="name at least one state, or omit it"
        )
    return found


def _each_state(given: States) -> Iterator[State]:
    """By the words that people are shown, or by those of the engine."""
    for each in [given] if isinstance(given, str) else given:
        word = str(each)
        found = [state for state in State if PUBLIC[state] == word] or [
            state for state in State if state == word
        ]
        if not found:
            raise InvalidInput(
                f"unknown state {word!r}",
                field="state",
                hint=f"use one of {', '.join(PublicState)}",
            )
        yield from found


class Found(Listing[Snapshot]):
    """Executions that match, in the order of their ids. Bulk verbs change those that match while
    they go through them; to repeat one is harmless."""

    def __init__(self, connect: Connect, wanted: Conditions) -> None:
        super().__init__(self._snapshot_pages)
        self._connect = connect
        self._wanted = wanted

    async def count(self) -> int:
        """How many match now."""
        engine = (await self._connect()).engine
        return await engine.read.count(self._wanted.now(engine))

    async def cancel(
        self,
        reason: str = "cancelled by the caller",
        *,
        everything: bool = False,
        per_second: int = PER_SECOND,
        progress: Progress | None = None,
    ) -> Changed:
        """End those that match as cancelled; what has ended is left as it is.

        `everything=True` confirms that no condition is meant. `per_second`: how many begin in a
        second. `progress` is called after each page with what was done so far.
        """
        self._require_meant("cancel", everything)
        engine = (await self._connect()).engine
        bulk = Bulk(lambda id: engine.cancel(id, reason), per_second)
        return await self._run(engine, bulk, lambda row: row.state not in TERMINAL, progress)

    async def replay(
        self,
        reason: str = "",
        *,
        everything: bool = False,
        per_second: int = PER_SECOND,
        progress: Progress | None = None,
    ) -> Changed:
        """Run those that match and have ended again; options as of `cancel`. The conditions must
        say a `state`, so that what has completed runs again only if that is meant."""
        self._require_meant("replay", everything)
        if not self._wanted.query.states and not everything:
            raise InvalidInput(
                "this replay would also repeat completed executions",
                field="state",
                hint="name the states in `find`, as in find(state='failed')",
            )
        engine = (await self._connect()).engine
        bulk = Bulk(lambda id: engine.replay(id, reason), per_second)
        return await self._run(engine, bulk, lambda row: row.state in TERMINAL, progress)

    async def purge(
        self,
        *,
        everything: bool = False,
        per_second: int = PER_SECOND,
        progress: Progress | None = None,
    ) -> Changed:
        """Delete those that match and have ended, before their retention is over; options as of
        `cancel`. Members of flows are refused, and so is one whose idempotency key counts."""
        self._require_meant("purge", everything)
        engine = (await self._connect()).engine
        bulk = Bulk(engine.purge, per_second)
        return await self._run(engine, bulk, lambda row: row.state in TERMINAL, progress)

    def _require_meant(self, verb: str, everything: bool) -> None:
        if self._wanted.is_everything and not everything:
            raise InvalidInput(
                f"{verb} without a condition changes every execution of the namespace",
                field="everything",
                hint=f"name a condition in `find`, or pass {verb}(everything=True)",
            )

    async def _run(
        self,
        engine: Engine,
        bulk: Bulk,
        is_meant: Callable[[Execution], bool],
        progress: Progress | None,
    ) -> Changed:
        async for heads in self._head_pages(engine):
            await bulk.run([row.id for row in heads if is_meant(row)])
            if progress is not None:
                progress(bulk.so_far)
        return bulk.so_far

    async def _snapshot_pages(self) -> AsyncIterator[list[Snapshot]]:
        engine = (await self._connect()).engine
        async for heads in self._head_pages(engine):
            yield [shown(each) for each in await engine.read.snapshots(heads)]

    async def _head_pages(self, engine: Engine) -> AsyncIterator[list[Execution]]:
        query = self._wanted.now(engine)
        is_more = True
        while is_more:
            page = await engine.read.find(query)
            yield page.items
            is_more = page.cursor is not None
            query = msgspec.structs.replace(query, after=page.cursor)
