"""What must be true of every store at every moment, said about its rows.

Each rule is a function from one execution to the sentences that say how it is broken. The rules
are written from what the columns mean, not with the functions that decide, so that a decision
that is wrong is found here. What the log must say is in `history.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from flowfabric.core.explain import explain
from flowfabric.core.flow.model import EdgeState
from flowfabric.core.flow.views import Sight, View
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import (
    NO_ATTEMPT,
    Admission,
    Attempt,
    Execution,
    Loaded,
    Loss,
    Query,
)
from flowfabric.core.policy import parse_policy
from flowfabric.core.states import (
    ATTEMPT_STATES,
    CLAIMABLE,
    REASONS,
    RUNNABLE,
    TERMINAL,
    AttemptKind,
    AttemptLifecycle,
    AttemptState,
    Reason,
    State,
)
from flowfabric.store.protocol import Store
from flowfabric.testing.history import broken_history
from flowfabric.testing.picture import ALL, Picture

Rule = Callable[[Loaded, int], Iterator[str]]

_GATE: dict[Admission, State] = {
    Admission.BUDGET: State.BLOCKED_BUDGET,
    Admission.QUOTA: State.BLOCKED_QUOTA,
    Admission.ROUTE: State.BLOCKED_ROUTE,
    Admission.LANE: State.BLOCKED_LANE,
}
_LOST: dict[Loss, State] = {
    Loss.NONE: State.WAITING,
    Loss.EXPIRED: State.ORPHANED,
    Loss.REVOKED: State.REVOKED,
}
HANDED_BACK = (AttemptState.PENDING_RETRY, AttemptState.INTERRUPTED, AttemptState.PENDING_FIRST)
# What somebody outside must do before it can go on; everything else wakes by itself.
_WOKEN_FROM_OUTSIDE = {"operator", "dependencies", "signal", "lane", "worker"}


def broken(picture: Picture, *, skew_ms: int = 0) -> list[str]:
    """Every sentence about what is wrong; none for a store as it should be."""
    found = list(_broken_indexes(picture))
    histories = picture.histories()
    for id, loaded in picture.loaded.items():
        sentences = [said for rule in RULES for said in rule(loaded, picture.now_ms)]
        sentences += broken_history(loaded, histories.get(id, []), picture.now_ms, skew_ms=skew_ms)
        sentences += _broken_end(loaded, picture)
        sentences += _broken_times(loaded.head, picture.now_ms, skew_ms)
        found += [f"{id}: {said}" for said in sentences]
    strangers = histories.keys() - picture.loaded.keys()
    return [*found, *(f"{id}: has a history and does not exist" for id in sorted(strangers))]


def _broken_indexes(picture: Picture) -> Iterator[str]:
    """The timers are what the rows say, no more and no less, in order."""
    armed = sorted((row.due_ms, row.id) for row in picture.rows if row.due_ms is not None)
    if picture.timers != [id for _, id in armed]:
        yield f"timers: the index has {picture.timers}, the rows have {armed}"
    passed = [id for due_ms, id in armed if due_ms <= picture.now_ms]
    if picture.overdue != passed:
        yield f"timers: due now are {passed}, the index says {picture.overdue}"
    later = [due_ms for due_ms, _ in armed if due_ms > picture.now_ms]
    if picture.next_ms != min(later, default=None):
        yield f"timers: the next one is at {min(later, default=None)}, not {picture.next_ms}"


def _broken_end(loaded: Loaded, picture: Picture) -> Iterator[str]:
    """Whoever waits for it hears what the row and the record of its last attempt say."""
    row, end = loaded.head, picture.ends.get(loaded.head.id)
    if end is None or (end.state, end.detail) != (row.state, row.outcome_detail):
        yield f"is {row.state}, but a waiting caller hears {end}"
    results = [attempt.result for attempt in loaded.attempts if attempt.attempt == row.attempt]
    if row.state is State.COMPLETED and end is not None and [end.result] != results:
        yield f"completed with {results}, but a waiting caller hears {end.result!r}"


def _broken_times(row: Execution, now_ms: int, skew_ms: int) -> Iterator[str]:
    if not row.created_ms - skew_ms <= row.updated_ms <= now_ms:
        yield f"created at {row.created_ms}, updated at {row.updated_ms}, now is {now_ms}"


def _shape(loaded: Loaded, now_ms: int) -> Iterator[str]:
    row = loaded.head
    if row.reason not in REASONS[row.state]:
        yield f"{row.state} for the reason {row.reason}"
    if row.attempt_state not in ATTEMPT_STATES[row.state]:
        yield f"{row.state} with the attempt state {row.attempt_state}"
    if (row.ended_ms is not None) != (row.state in TERMINAL):
        yield f"{row.state}, ended at {row.ended_ms}"


def _lease(loaded: Loaded, now_ms: int) -> Iterator[str]:
    """Whoever is active is held by somebody; nobody else is."""
    row = loaded.head
    held = (row.lease_until_ms is not None, bool(row.worker))
    if held != ((True, True) if row.state is State.ACTIVE else (False, False)):
        yield f"{row.state} with a lease until {row.lease_until_ms} of worker '{row.worker}'"
    if row.state is State.ACTIVE and not (row.epoch and row.lease_token):
        yield f"active with epoch {row.epoch} and token '{row.lease_token}'"
    is_running = row.state is State.ACTIVE and row.reason is not Reason.GRANTED
    if is_running != (row.attempt_state is AttemptState.RUNNING):
        yield f"{row.state} ({row.reason}) with the attempt state {row.attempt_state}"
    if row.attempt_until_ms is not None and not is_running:
        yield f"{row.state} ({row.reason}) with an attempt until {row.attempt_until_ms}"


def instants(row: Execution) -> list[int]:
    """Every moment at which something must happen to this row by itself."""
    if row.state in TERMINAL:
        return []
    found = [row.deadline_ms]
    if row.state is State.ACTIVE:
        found += [row.lease_until_ms, row.attempt_until_ms]
    elif row.state is State.DELAYED:
        found.append(row.not_before_ms)
    elif row.state in RUNNABLE and row.admission is not Admission.NONE:
        found.append(row.recheck_ms)
    return sorted(instant for instant in found if instant is not None)


def _timer(loaded: Loaded, now_ms: int) -> Iterator[str]:
    """A timer may be early; late or missing it would leave the execution lying for ever."""
    row = loaded.head
    due = instants(row)
    if not due and row.due_ms is not None:
        yield f"{row.state} with a timer at {row.due_ms} for nothing"
    if due and not row.failures and (row.due_ms is None or row.due_ms > due[0]):
        yield f"{row.state}: due at {due[0]}, but its timer is {row.due_ms}"


def _woken(loaded: Loaded, now_ms: int) -> Iterator[str]:
    """Claimable, held by a live lease, due, or blocked by something that has a name."""
    row = loaded.head
    if row.state in TERMINAL:
        return
    said = explain(row, now_ms)
    has_time = said.until_ms is not None and row.due_ms is not None and row.due_ms <= said.until_ms
    if said.wakes not in _WOKEN_FROM_OUTSIDE and not has_time:
        yield f"{row.state}: woken by {said.wakes} at {said.until_ms}, its timer is {row.due_ms}"
    if (said.wakes == "worker") != (row.state in CLAIMABLE):
        yield f"{row.state}: woken by {said.wakes}"


async def broken_promises(store: Store, now_ms: int) -> list[str]:
    """The promise, over a store that nobody writes to meanwhile: whatever is not over can be
    claimed, is held, or is woken by something that is really there."""
    rows = {row.id: row for row in await store.find(Query(limit=ALL))}
    found = [f"{row.id}: {said}" for row in rows.values() for said in _woken(Loaded(row), now_ms)]
    waiting: dict[FlowId, list[ExecutionId]] = {}
    for row in rows.values():
        if row.state is State.BLOCKED_DEPENDENCIES:
            waiting.setdefault(FlowId(row.flow), []).append(row.id)
    over = {row.id: row.replay_count for row in rows.values() if row.state in TERMINAL}
    for flow, ids in waiting.items():
        view = (await store.graph([Sight(flow=flow, entering=ids, groups=ids, lines=True)]))[0]
        found += [f"{id}: {said}" for id in ids for said in _released(id, view, over)]
    return found


def _released(id: ExecutionId, view: View, over: Mapping[ExecutionId, int]) -> Iterator[str]:
    """Somebody it waits for has not ended, or is to be replayed, or a line will tell it."""
    if view.flow is None:
        yield "waits in a flow that is not there"
    elif view.flow.is_open and not view.lines:
        is_drawn = all(group.sealed for group in view.groups if group.downstream == id)
        to_come = [
            edge.upstream
            for edge in view.edges
            if edge.downstream == id
            and edge.state is EdgeState.PENDING
            and over.get(edge.upstream, -1) < edge.generation
        ]
        if is_drawn and not to_come:
            yield "all dependencies finished and nothing is queued to release it"


def _facts(loaded: Loaded, now_ms: int) -> Iterator[str]:
    """The state of what waits is the first of its facts, and no fact is overlooked."""
    row = loaded.head
    if row.state in TERMINAL or row.state in (State.ACTIVE, State.SUSPENDED):
        return
    wanted: set[State] = set()
    is_past = row.not_before_ms is None or row.not_before_ms <= now_ms
    if row.paused:
        wanted.add(State.BLOCKED_OPERATOR)
    elif row.deps_open:
        wanted.add(State.BLOCKED_DEPENDENCIES)
        # Its holder could not know: the timer of what was handed back looks at it again.
        if row.attempt_state in HANDED_BACK and row.not_before_ms is not None:
            wanted.add(State.DELAYED)
    else:
        # A delay that is over is still one until its timer was served.
        if row.not_before_ms is not None:
            wanted.add(State.DELAYED)
        if is_past:
            wanted.add(_GATE.get(row.admission, _LOST[row.lost]))
    if row.state not in wanted:
        yield f"is {row.state}, its facts say {' or '.join(sorted(wanted))}"


def _caps(loaded: Loaded, now_ms: int) -> Iterator[str]:
    row = loaded.head
    policy = parse_policy(row.policy)
    retries = policy.retry_policy.max_retries if policy.retry_policy else 0
    limits = (
        ("retries", row.retry_count, retries),
        ("reclaims", row.reclaim_count, policy.timeout_policy.max_reclaim_count),
        ("replays", row.replay_count, policy.max_replay_count),
    )
    for name, count, limit in limits:
        if not 0 <= count <= limit:
            yield f"{count} {name}, the policy allows {limit}"


def _attempts(loaded: Loaded, now_ms: int) -> Iterator[str]:
    """Every attempt whose lease has ended has a record, and no other has."""
    row, records = loaded.head, {attempt.attempt: attempt for attempt in loaded.attempts}
    is_running = row.attempt_state is AttemptState.RUNNING
    ended = set(range(row.attempt + (0 if is_running else 1)))
    resumed = {row.attempt} if is_running and row.attempt_kind is AttemptKind.RESUME else set()
    if set(records) != ended | resumed:
        yield f"has run {row.attempt + 1} attempts, recorded are {sorted(records)}"
    for number, attempt in sorted(records.items()):
        is_open = number == row.attempt and row.next_kind is AttemptKind.RESUME
        is_open = is_open and row.state not in TERMINAL
        if attempt.lifecycle.is_terminal == is_open:
            yield f"is {row.state}, attempt {number} is {attempt.lifecycle}"
        yield from _attempt(attempt, now_ms)
    epochs = [attempt.epoch for attempt in loaded.attempts]
    if epochs != sorted(set(epochs)):
        yield f"its attempts had the epochs {epochs}"
    last = records.get(row.attempt)
    if row.state is State.COMPLETED and (
        last is None or last.lifecycle is not AttemptLifecycle.ENDED_SUCCESS
    ):
        yield f"completed, its last attempt is {last}"
    if row.attempt == NO_ATTEMPT and row.started_ms is not None:
        yield f"started at {row.started_ms} without an attempt"


def _attempt(attempt: Attempt, now_ms: int) -> Iterator[str]:
    name = f"attempt {attempt.attempt}"
    if (attempt.ended_ms is not None) != attempt.lifecycle.is_terminal:
        yield f"{name} is {attempt.lifecycle}, ended at {attempt.ended_ms}"
    if attempt.started_ms is None or attempt.started_ms > (attempt.ended_ms or now_ms):
        yield f"{name} started at {attempt.started_ms}, ended at {attempt.ended_ms}"
    if (attempt.result is not None) != (attempt.lifecycle is AttemptLifecycle.ENDED_SUCCESS):
        yield f"{name} is {attempt.lifecycle} with the result {attempt.result!r}"
    if attempt.kind is AttemptKind.RESUME or not attempt.epoch:
        yield f"{name} began as {attempt.kind} with epoch {attempt.epoch}"


RULES: tuple[Rule, ...] = (_shape, _lease, _timer, _woken, _facts, _caps, _attempts)
