"""What must be so when everything is over: said about the store, the side file and what the lab
was told. No test lives here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import pairwise

from flowfabric.core.flow.model import Flow
from flowfabric.core.flow.views import FlowQuery
from flowfabric.core.ids import ExecutionId, FlowId, public_id
from flowfabric.core.model import Event, Execution, Feed, Loaded, Query, Want
from flowfabric.core.states import TERMINAL, AttemptLifecycle, State
from flowfabric.store import Store
from flowfabric.testing.invariants import broken_promises

ALL = 1_000_000
PAGE = 500
# More than any process of the lab is stopped for between a decision and its commit.
OLD_MS = 60_000
COUNTERS = ("completed", "failed", "cancelled", "expired", "skipped")
UNFINISHED = tuple(state for state in State if state not in TERMINAL)


async def everything(store: Store) -> list[Execution]:
    return await store.find(Query(limit=ALL))


async def unfinished(store: Store) -> list[str]:
    """Executions that have not ended, and flows that are not settled."""
    rows = await store.find(Query(states=UNFINISHED, limit=ALL))
    flows = await store.find_flows(FlowQuery(unsettled=True, limit=PAGE))
    return [
        *(f"{row.id} is {row.state}" for row in rows),
        *(f"flow {flow.id} is not settled: {flow}" for flow in flows),
    ]


async def wrong(
    store: Store, told: dict[FlowId, list[ExecutionId]], done: Collection[tuple[str, int]]
) -> list[str]:
    """Every sentence about what is lost, doubled, miscounted or stuck."""
    rows = {row.id: row for row in await everything(store)}
    members = [id for ids in told.values() for id in ids]
    found = [f"{id} was acknowledged, and is lost" for id in members if id not in rows]
    lines = await store.tail(Feed(limit=ALL))
    completions = await _completions(store, list(rows), lines, done)
    found += completions
    found += _ahead(lines)
    flows = {flow.id: flow for flow in await _flows(store)}
    found += [f"flow {id} was acknowledged, and is lost" for id in told if id not in flows]
    for flow in flows.values():
        found += _miscounted(flow, [row for row in rows.values() if row.flow == flow.id])
    return [*found, *await unfinished(store), *await broken_promises(store, await store.now())]


def _ahead(lines: list[Event]) -> Iterator[str]:
    """Lines that a clock wrote which was ahead of all others: the next ones are long before it."""
    for line, following in pairwise(lines):
        if line.at_ms > following.at_ms + OLD_MS:
            yield f"{line.execution} was {line.kind} {line.at_ms - following.at_ms} ms ahead"


async def _flows(store: Store) -> list[Flow]:
    found: list[Flow] = []
    while page := await store.find_flows(
        FlowQuery(after=found[-1].id if found else "", limit=PAGE)
    ):
        found += page
    return found


async def _completions(
    store: Store,
    ids: list[ExecutionId],
    lines: list[Event],
    done: Collection[tuple[str, int]],
) -> list[str]:
    """One success for each life of an execution, and each was written down by who did the work."""
    completed = Counter(line.execution for line in lines if line.kind == "completed")
    found: list[str] = []
    for start in range(0, len(ids), PAGE):
        loaded = await store.load(Want(ids=ids[start : start + PAGE], attempts=True))
        for each in loaded:
            if each is not None:
                found += _doubled(each, completed[each.head.id], done)
    return found


def _doubled(loaded: Loaded, completed: int, done: Collection[tuple[str, int]]) -> Iterator[str]:
    head = loaded.head
    wins = [
        attempt.attempt
        for attempt in loaded.attempts
        if attempt.lifecycle is AttemptLifecycle.ENDED_SUCCESS
    ]
    if len(wins) > head.replay_count + 1 or len(wins) != completed:
        yield f"{head.id} ({head.replay_count} replays) won {wins}, completed {completed} times"
    for attempt in wins:
        if (public_id(head.id), attempt) not in done:
            yield f"{head.id}: attempt {attempt} completed, and nobody did the work"


def _miscounted(flow: Flow, members: list[Execution]) -> Iterator[str]:
    counted = Counter(str(row.state) for row in members)
    for name in COUNTERS:
        if getattr(flow, name) != counted[name]:
            yield f"flow {flow.id} counts {getattr(flow, name)} {name}, it has {counted[name]}"
    if flow.total != len(members):
        yield f"flow {flow.id} counts {flow.total} members, it has {len(members)}"
