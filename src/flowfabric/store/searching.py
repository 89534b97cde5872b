"""How a store of tables finds executions: by the index that leaves the fewest, a part at a time.

Members of a flow are found by their flow. Executions with a tag are found by the tag, and those
that wait for a worker, are held by one, or are delayed by the indexes of claims and timers, as long
as these are few. Everything else walks over the ids, so many at a time that no statement is long.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from flowfabric.core.model import Execution, Query, Queue
from flowfabric.core.states import CLAIMABLE, State

# How many ids one statement walks over, and how many are worth to be looked at one by one.
STRETCH = 20_000
CANDIDATES = 5_000
AT_ONCE = 1_000
# Of how many routes and priorities one statement tells.
PAIRS = 1_000

# Rows in these states are among those that are ready, or have a timer.
_INDEXED = CLAIMABLE | {State.ACTIVE, State.DELAYED}
# Greater than every id: ids are ASCII.
_AFTER_ALL_IDS = "\x7f"


class Part(NamedTuple):
    """A part of all executions: those after one id up to another, or those with these ids."""

    after: str
    last: str
    ids: Sequence[str] | None = None


class Names(NamedTuple):
    """The statements that look at a stretch of ids, at members of a flow, at given ids."""

    stretch: str
    flow: str
    among: str

    def of(self, query: Query, part: Part) -> str:
        if part.ids is not None:
            return self.among
        return self.stretch if query.flow is None else self.flow


FIND = Names("execution_find", "execution_find_flow", "execution_find_among")
COUNT = Names("execution_count", "execution_count_flow", "execution_count_among")


class Looks(Protocol):
    """What is asked of the database, each by one statement."""

    async def heads(self, query: Query, part: Part) -> list[Execution]:
        """Those of a part that fit, in the order of their ids, up to the limit of the query."""
        ...

    async def fitting(self, query: Query, part: Part) -> int:
        """How many of a part fit."""
        ...

    async def stretch(self, after: str, before: str, size: int) -> str | None:
        """The last id of the next ones; None if there are no more than that."""
        ...

    async def tagged(self, key: str, value: str, limit: int) -> list[str]:
        """The ids of what has a tag, each once, up to a number."""
        ...

    async def open_ids(self, namespace: str, limit: int) -> list[str]:
        """The ids of what is ready, and of what has a timer, each up to a number."""
        ...


async def find(looks: Looks, query: Query) -> list[Execution]:
    """The heads that fit, by id, up to the limit."""
    found: list[Execution] = []
    if query.limit < 1:
        return found
    async for part in _parts(looks, query):
        left = msgspec.structs.replace(query, limit=query.limit - len(found))
        found.extend(await looks.heads(left, part))
        if len(found) >= query.limit:
            break
    return found


async def count(looks: Looks, query: Query) -> int:
    """How many fit."""
    return sum([await looks.fitting(query, part) async for part in _parts(looks, query)])


async def _parts(looks: Looks, query: Query) -> AsyncIterator[Part]:
    """All that could fit, part by part in the order of their ids."""
    after, before = _bounds(query)
    ids = await _candidates(looks, query)
    if ids is not None:
        wanted = [id for id in ids if after < id < before]
        for start in range(0, len(wanted), AT_ONCE):
            yield Part(after, before, wanted[start : start + AT_ONCE])
        return
    is_walk = query.flow is None and _is_narrow(query)
    while True:
        end = await looks.stretch(after, before, STRETCH) if is_walk else None
        yield Part(after, end or before)
        if end is None:
            return
        after = end


async def _candidates(looks: Looks, query: Query) -> list[str] | None:
    """The ids of all that could fit, if an index knows them and they are few."""
    if query.flow is not None:
        return None
    for key, value in query.tags.items():
        ids = await looks.tagged(key, value, CANDIDATES + 1)
        if len(ids) <= CANDIDATES:
            return sorted(ids)
    if query.namespace and query.states and _INDEXED.issuperset(query.states):
        ids = await looks.open_ids(query.namespace, CANDIDATES + 1)
        if len(ids) <= CANDIDATES:
            return sorted(set(ids))
    return None


def _is_narrow(query: Query) -> bool:
    """Whether very many may have to be passed for one that fits. What sweepers ask for, states of
    all namespaces, comes page by page as it is, without a look at where a stretch ends."""
    asked = (query.namespace, query.lane, query.kind, query.since_ms)
    return bool(query.tags) or any(each is not None for each in asked)


def _bounds(query: Query) -> tuple[str, str]:
    lower, upper = "", _AFTER_ALL_IDS
    if query.partition is not None:
        lower = f"{{fp:{query.partition}}}:"
        upper = lower + _AFTER_ALL_IDS
    return max(lower, query.after or ""), upper


def queues_of(pairs: Iterable[tuple[str, int, int]], limit: int, depth: int) -> list[Queue]:
    """Routes, of what was told of each route and priority: how many, up to the depth, and the
    oldest. The last route may be told of in part, and then waits for the next look."""
    told = list(pairs)
    found: dict[str, Queue] = {}
    for route, ready, oldest_ms in told:
        seen = found.get(route, Queue(route, 0, oldest_ms))
        total, oldest = seen.ready + ready, min(seen.oldest_ms, oldest_ms)
        found[route] = Queue(route, min(total, depth), oldest, seen.is_more or total > depth)
    routes = list(found.values())
    if len(told) == PAIRS:
        last = routes.pop()
        routes = routes or [msgspec.structs.replace(last, is_more=True)]
    return routes[:limit]
