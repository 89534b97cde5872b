"""What can be asked about executions. Nothing here writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from flowfabric.core.attempt_record import AttemptRecord
from flowfabric.core.explain import Explanation, blocking_detail, explain
from flowfabric.core.failures import FailureReport
from flowfabric.core.flow.eligibility import Standing, Waits, standing_of, waits_of
from flowfabric.core.flow.member_names import may_be_named, name_in
from flowfabric.core.flow.model import MISSING
from flowfabric.core.flow.views import Sight
from flowfabric.core.ids import ExecutionId, FlowId, parse_execution_id, public_id
from flowfabric.core.model import (
    NO_ATTEMPT,
    UNREADABLE,
    Attempt,
    Ended,
    Event,
    Execution,
    Feed,
    Lane,
    Loaded,
    Query,
    Want,
    without_token,
)
from flowfabric.core.refusal import not_found
from flowfabric.core.registry import WorkerRecord, unserved
from flowfabric.core.states import (
    CLAIMABLE,
    AttemptLifecycle,
    AttemptState,
    PublicState,
    State,
    Vector,
    vector,
)
from flowfabric.engine.attempt_reading import attempt_records, failure_of
from flowfabric.engine.lane_reading import LaneRecord, lane_records
from flowfabric.engine.lanes import SERVING, Lanes
from flowfabric.engine.looking import look_at_whole
from flowfabric.engine.registry import Registry
from flowfabric.printing import with_public_ids
from flowfabric.store.clock import Clock
from flowfabric.store.damage import MISSING_RESULT, unreadable, unreadable_flow, unreadable_lane
from flowfabric.store.protocol import Store

PAGE_LIMIT = 1_000
NAMED_MAX = 5


class LeaseSummary(msgspec.Struct, frozen=True):
    """Who works on it, and until when unless renewed. The token is its holder's alone."""

    epoch: int
    worker: str
    expires_ms: int
    attempt: int
    last_heartbeat_ms: int | None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One execution as it is now."""

    id: str
    namespace: str
    lane: str
    kind: str
    public_state: PublicState
    vector: Vector
    blocking_detail: str
    priority: int
    attempt: int | None
    total_attempt_count: int
    lease: LeaseSummary | None
    created_ms: int
    started_ms: int | None
    ended_ms: int | None
    updated_ms: int
    deadline_ms: int | None
    retry_count: int
    reclaim_count: int
    replay_count: int
    outcome_detail: str
    outcome_category: str
    progress_pct: int | None
    progress_message: str | None
    tags: dict[str, str]

    @property
    def member(self) -> str:
        """The name of the member in its graph; empty without one."""
        return name_in(self.tags)


class Page(msgspec.Struct, frozen=True):
    """One page; `cursor` leads to the next and is None on the last. `names`: of those items that
    are members of a flow and have a name in it."""

    items: list[Execution]
    cursor: ExecutionId | None
    names: dict[str, str] = msgspec.field(default_factory=dict)


class LanePage(msgspec.Struct, frozen=True):
    items: list[Lane]
    cursor: str | None


class Reading:
    """The reading verbs of the engine."""

    def __init__(self, store: Store, clock: Clock, lanes: Lanes, registry: Registry) -> None:
        self._store = store
        self._clock = clock
        self._lanes = lanes
        self._registry = registry

    async def load(self, id: str, *, payload: bool = False) -> Loaded:
        """The head without the token of its lease, or `ExecutionNotFound`."""
        loaded = await self._load(id, payload=payload)
        if loaded is None:
            raise not_found(id)
        return msgspec.structs.replace(loaded, head=without_token(loaded.head))

    async def _load(
        self, id: str, *, payload: bool = False, tags: bool = False, attempts: bool = False
    ) -> Loaded | None:
        """One execution; a text that is no id is refused, whatever a store would make of it."""
        ids = [parse_execution_id(id)]
        want = Want(ids=ids, payload=payload, tags=tags, attempts=attempts)
        return (await self._store.load(want))[0]

    async def describe(self, id: str) -> Snapshot | None:
        """Everything worth showing; None if there is no such execution."""
        loaded = await self._load(id, tags=True)
        return None if loaded is None else snapshot(loaded)

    async def state(self, id: str) -> PublicState | None:
        found = await self.describe(id)
        return None if found is None else found.public_state

    async def result(self, id: str) -> bytes | None:
        """The bytes it completed with; None while there are none."""
        ended = (await self._store.endings([parse_execution_id(id)]))[0]
        return ended.result if ended is not None and ended.state is State.COMPLETED else None

    async def endings(self, ids: Sequence[ExecutionId]) -> list[Ended | None]:
        """How many executions stand, in one call; None for those that do not exist."""
        return await self._store.endings(ids)

    async def tags(self, id: str) -> dict[str, str]:
        """Its tags; none for an execution that does not exist."""
        loaded = await self._load(id, tags=True)
        return {} if loaded is None else loaded.tags

    async def tags_of(self, ids: Sequence[ExecutionId]) -> dict[ExecutionId, dict[str, str]]:
        """The tags of many, in one call; nothing for one that does not exist."""
        found = await self._store.load(Want(ids=ids, tags=True))
        return {each.head.id: each.tags for each in found if each is not None}

    async def member_names(self, members: Iterable[ExecutionId]) -> dict[str, str]:
        """Of these members of flows, those that have names; no call if none can have one."""
        return await member_names(self._store, members)

    async def attempts(self, id: str) -> list[Attempt]:
        """Every attempt, oldest first; the one that runs is read from the head."""
        loaded = await self._load(id, attempts=True)
        return [] if loaded is None else _attempts_of(loaded)

    async def attempt_records(self, id: str) -> list[AttemptRecord]:
        """The same, with the exception that ended each and the lines it logged."""
        loaded = await self._load(id, attempts=True)
        if loaded is None:
            raise not_found(id)
        return await attempt_records(self._store, loaded.head, _attempts_of(loaded))

    async def failure(self, id: str) -> FailureReport | None:
        """The exception that ended its last attempt, if one did."""
        return await failure_of(self._store, (await self.load(id)).head)

    async def events(self, feed: Feed) -> list[Event]:
        """Lines of the log after a cursor, a page of them. A line that cannot be read is `Corrupt`
        in the history of one execution, and says so in its detail among those of all."""
        limit = min(feed.limit, PAGE_LIMIT)
        one = parse_execution_id(feed.execution) if feed.execution else feed.execution
        if limit < 1:
            return []
        found = await self._store.tail(msgspec.structs.replace(feed, limit=limit, execution=one))
        for line in found if feed.execution is not None else ():
            if UNREADABLE in line.detail:
                raise unreadable(line.execution, f"its log: {line.detail[UNREADABLE]}")
        return found

    async def explain(self, id: str) -> Explanation:
        """Why it is not running, or what it does."""
        head = (await self.load(id)).head
        lane = await self._lanes.state(head.lane)
        waits, why = await self.waits(head), await self._registry.unserved(head)
        about = (head.id, *waits.unfinished[:NAMED_MAX], *waits.to_replay[:NAMED_MAX])
        found = await self.member_names(about) if head.flow else {}
        return explain(head, self._clock.now_ms(), lane, waits, unserved=why, names=found)

    async def unserved(self, ids: Sequence[ExecutionId]) -> dict[str, list[ExecutionId]]:
        """By the reason, those of them that could be taken and that no live worker takes."""
        found: dict[str, list[ExecutionId]] = {}
        workers: dict[str, list[WorkerRecord]] = {}
        for loaded in await self._store.load(Want(ids=ids)):
            if loaded is None or loaded.head.state not in CLAIMABLE:
                continue
            head = loaded.head
            if await self._lanes.state(head.lane) not in SERVING:
                continue
            if head.namespace not in workers:
                workers[head.namespace] = await self._registry.live(head.namespace)
            why = unserved(head.lane, head.kind, workers[head.namespace])
            if why:
                found.setdefault(why, []).append(head.id)
        return found

    async def waits(self, row: Execution) -> Waits:
        """What a member waits for, as its flow is now; of others, what their rows say."""
        if row.state is not State.BLOCKED_DEPENDENCIES or not row.flow:
            return Waits(standing_of(row))
        sight = Sight(flow=FlowId(row.flow), entering=[row.id], ends=True)
        now_ms = self._clock.now_ms()
        view = await look_at_whole(self._store, sight, now_ms)
        if view.flow is None:
            # A flow goes after its last member, and with all of them.
            raise unreadable_flow(sight.flow, f"{MISSING}, and execution {row.id} names it")
        waits = waits_of(row, view)
        if waits.unfinished:
            return waits
        # Something else keeps it: only then the lines are worth a look.
        wider = msgspec.structs.replace(sight, lines=True)
        return waits_of(row, await look_at_whole(self._store, wider, now_ms))

    async def eligibility(self, id: str) -> Standing:
        """Whether it may run, as far as what it depends on is concerned."""
        loaded = await self._load(id)
        return standing_of(None) if loaded is None else (await self.waits(loaded.head)).standing

    async def find(self, query: Query) -> Page:
        """A page of heads in order of their ids."""
        limit = min(query.limit, PAGE_LIMIT)
        if limit < 1:
            return Page([], None)
        rows = await self._store.find(msgspec.structs.replace(query, limit=limit + 1))
        cursor = rows[limit - 1].id if len(rows) > limit else None
        return Page([without_token(row) for row in rows[:limit]], cursor)

    async def count(self, query: Query) -> int:
        """How many executions fit, whatever the limit."""
        return await self._store.count(query)

    async def lanes(self, namespace: str) -> list[LaneRecord]:
        """Every lane with its state, and what is ready in it in this namespace."""
        return await lane_records(self._store, namespace)

    async def snapshots(self, heads: Sequence[Execution]) -> list[Snapshot]:
        """Executions of a page as people see them, with their tags."""
        tags = await self.tags_of([head.id for head in heads]) if heads else {}
        return [snapshot(Loaded(head, tags=tags.get(head.id, {}))) for head in heads]

    async def list_lanes(self, after: str = "", limit: int = PAGE_LIMIT) -> LanePage:
        """A page of lanes in order of their names."""
        limit = min(limit, PAGE_LIMIT)
        if limit < 1:
            return LanePage([], None)
        lanes = await self._store.lanes(after, limit + 1)
        for lane in lanes:
            if lane.problem:
                raise unreadable_lane(lane)
        return LanePage(lanes[:limit], lanes[limit - 1].name if len(lanes) > limit else None)


async def member_names(store: Store, members: Iterable[ExecutionId]) -> dict[str, str]:
    ids = [id for id in members if may_be_named(id)]
    found = await store.load(Want(ids=ids, tags=True)) if ids else []
    named: dict[str, str] = {each.head.id: name_in(each.tags) for each in found if each is not None}
    return {id: name for id, name in named.items() if name}


def snapshot(loaded: Loaded) -> Snapshot:
    head = loaded.head
    shown = vector(head.state, head.reason, head.attempt_state)
    # While an attempt runs, the head still says how the one before it ended.
    is_running = head.state is State.ACTIVE and head.attempt_state is AttemptState.RUNNING
    return Snapshot(
        id=public_id(head.id),
        namespace=head.namespace,
        lane=head.lane,
        kind=head.kind,
        public_state=shown.public_state,
        vector=shown,
        blocking_detail=blocking_detail(head),
        priority=head.priority,
        attempt=None if head.attempt == NO_ATTEMPT else head.attempt,
        total_attempt_count=head.attempt + 1,
        lease=_lease(head),
        created_ms=head.created_ms,
        started_ms=head.started_ms,
        ended_ms=head.ended_ms,
        updated_ms=head.updated_ms,
        deadline_ms=head.deadline_ms,
        retry_count=head.retry_count,
        reclaim_count=head.reclaim_count,
        replay_count=head.replay_count,
        outcome_detail="" if is_running else with_public_ids(head.outcome_detail),
        outcome_category="" if is_running else head.outcome_category,
        progress_pct=head.progress_pct,
        progress_message=head.progress_message,
        tags=loaded.tags,
    )


def _lease(head: Execution) -> LeaseSummary | None:
    if head.state is not State.ACTIVE or head.lease_until_ms is None:
        return None
    return LeaseSummary(
        head.epoch,
        head.worker,
        head.lease_until_ms,
        head.attempt,
        head.renewed_ms,
    )


def _problem_of(attempt: Attempt | None) -> str:
    """What is missing of an attempt that must be there; whoever succeeded left a result."""
    if attempt is None:
        return MISSING
    is_empty = attempt.lifecycle is AttemptLifecycle.ENDED_SUCCESS and attempt.result is None
    return MISSING_RESULT if is_empty else ""


def _attempts_of(loaded: Loaded) -> list[Attempt]:
    """As they are stored, and the one that runs as the head says."""
    stored = {attempt.attempt: attempt for attempt in loaded.attempts}
    head = loaded.head
    if head.state is State.ACTIVE and head.attempt_state is AttemptState.RUNNING:
        stored[head.attempt] = _running(head, stored.get(head.attempt))
    for number in range(head.attempt + 1):
        problem = _problem_of(stored.get(number))
        if problem:
            raise unreadable(head.id, f"attempt {number}: {problem}")
    return [stored[number] for number in sorted(stored)]


def _running(head: Execution, earlier: Attempt | None) -> Attempt:
    """A resumed attempt keeps how and when it first began."""
    return Attempt(
        execution=head.id,
        attempt=head.attempt,
        kind=earlier.kind if earlier else head.attempt_kind,
        lifecycle=AttemptLifecycle.STARTED,
        worker=head.worker,
        epoch=head.epoch,
        started_ms=earlier.started_ms if earlier else head.attempt_started_ms,
    )
