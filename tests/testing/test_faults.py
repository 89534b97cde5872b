"""The store that fails on purpose: at the call that was named, in the way that was named."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from flowfabric.core.documents import DocumentQuery, create
from flowfabric.core.entries import Append, Entry, Topic
from flowfabric.core.flow.views import FlowQuery, Sight, Turn
from flowfabric.core.lifecycle import complete
from flowfabric.core.model import Claim, Feed, Query, Want
from flowfabric.core.operator import Source, cancel
from flowfabric.core.retention import Purge
from flowfabric.core.states import LaneState, State
from flowfabric.core.transition import Applied, Changeset, Held, LaneChange
from flowfabric.errors import StoreUnavailable
from flowfabric.store.protocol import Store
from flowfabric.testing import Fault, FaultyStore, Kind, Verb, VirtualClock
from flowfabric.testing.build import NAMESPACE, ask, execution_id, order, submissions
from flowfabric.testing.conformance.steps import DOCUMENT_KIND, TOPIC, contents, put, put_and_take
from flowfabric.testing.flows import FLOW

WRITING = (
    Verb.INSERT,
    Verb.CLAIM,
    Verb.APPLY,
    Verb.APPEND,
    Verb.PUT,
    Verb.COMMIT,
    Verb.COMMIT_EACH,
)
VERBS = tuple(verb for verb in Verb if verb is not Verb.ANY)
LOST: dict[Kind, type[BaseException]] = {
    Kind.AFTER: StoreUnavailable,
    Kind.TIMEOUT: TimeoutError,
    Kind.CANCELLED: asyncio.CancelledError,
}


class Caller:
    """Calls each verb with something to do."""

    def __init__(self, store: Store, clock: VirtualClock) -> None:
        self.store = store
        self.clock = clock

    async def prepare(self) -> None:
        """One lease to finish, and one execution to claim."""
        self.lease = await put_and_take(self.store, self.clock, order(0))
        await put(self.store, self.clock, order(1))

    def claim(self, *, repeated: bool = False) -> Claim:
        return ask(self.clock.now_ms(), token="token-2", repeated=repeated)

    async def call(self, store: Store, verb: Verb) -> object:
        now_ms = self.clock.now_ms()
        match verb:
            case Verb.INSERT:
                return await store.insert(submissions([order(2)], now_ms), now_ms)
            case Verb.CLAIM:
                return await store.claim(self.claim())
            case Verb.APPLY:
                return await store.apply([complete(self.lease, now_ms, b"")], now_ms, urgent=True)
            case Verb.APPEND:
                held = Held(self.lease.epoch, self.lease.token)
                entry = Entry(TOPIC, "key", b"body")
                return await store.append([Append(self.lease.id, held, (entry,))], now_ms)
            case Verb.PUT:
                return await store.put([create(DOCUMENT_KIND, NAMESPACE, "name", body=b"")], now_ms)
            case Verb.COMMIT:
                ended = cancel(self.lease.head, now_ms, "", source=Source.OPERATOR)
                return await store.commit(Changeset([ended]), now_ms)
            case Verb.COMMIT_EACH:
                ended = cancel(self.lease.head, now_ms, "", source=Source.OPERATOR)
                lane = LaneChange("new", 0, LaneState.PAUSED)
                each = [Changeset([ended]), Changeset(lanes=[lane])]
                return await store.commit_each(each, now_ms)
            case _:
                return await self.read(store, verb)

    async def read(self, store: Store, verb: Verb) -> object:
        match verb:
            case Verb.LOAD:
                return await store.load(Want(ids=[execution_id(0)]))
            case Verb.ENTRIES:
                return await store.entries([Topic(execution_id(0), TOPIC)])
            case Verb.DOCUMENTS:
                return await store.documents(DocumentQuery(kind=DOCUMENT_KIND, namespace=NAMESPACE))
            case Verb.ENDINGS:
                return await store.endings([execution_id(0)])
            case Verb.DUE:
                return await store.due(self.clock.now_ms() + 10**6, 10)
            case Verb.FIND:
                return await store.find(Query())
            case Verb.COUNT:
                return await store.count(Query())
            case Verb.QUEUES:
                return await store.queues(NAMESPACE, "", 10, 10)
            case Verb.TAIL:
                return await store.tail(Feed())
            case Verb.LANES:
                return await store.lanes("", 10)
            case Verb.DEPARTING:
                return await store.departing(self.clock.now_ms(), 10)
            case Verb.PURGE:
                return await store.purge(Purge(now_ms=self.clock.now_ms()))
            case Verb.SHIFTS:
                return await store.shifts([], self.clock.now_ms())
            case Verb.PENDING:
                now_ms = self.clock.now_ms()
                return await store.pending(Turn(limit=1, now_ms=now_ms, until_ms=now_ms + 1))
            case Verb.NEXT_TURN:
                return await store.next_turn(self.clock.now_ms())
            case Verb.GRAPH:
                return await store.graph([Sight(flow=FLOW)])
            case Verb.FIND_FLOWS:
                return await store.find_flows(FlowQuery())
            case Verb.NOW:
                return await store.now()
            case Verb.MIGRATE:
                return await store.migrate()
            case _:
                await store.close()
                return None


@pytest.fixture
async def caller(store: Store, clock: VirtualClock) -> Caller:
    caller = Caller(store, clock)
    await caller.prepare()
    return caller


def test_every_verb_of_a_store_can_fail() -> None:
    verbs = {name for name, each in inspect.getmembers(Store) if inspect.iscoroutinefunction(each)}
    assert verbs == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
async def test_a_call_without_a_fault_goes_through(caller: Caller, verb: Verb) -> None:
    other = next(each for each in VERBS if each is not verb)
    faulty = FaultyStore(caller.store, [Fault(other, 1, Kind.BEFORE), Fault(verb, 2, Kind.BEFORE)])
    expected = await caller.read(caller.store, verb) if verb not in (*WRITING, Verb.CLOSE) else None
    answer = await caller.call(faulty, verb)
    assert verb in (*WRITING, Verb.CLOSE) or answer == expected
    assert (faulty.hit, faulty.calls[verb], faulty.calls[Verb.ANY]) == ([], 1, 1)


@pytest.mark.parametrize("verb", VERBS)
async def test_an_error_before_leaves_everything_as_it_was(caller: Caller, verb: Verb) -> None:
    before = await contents(caller.store)
    faulty = FaultyStore(caller.store, [Fault(verb, 1, Kind.BEFORE)])
    with pytest.raises(StoreUnavailable, match=f"{verb} failed before"):
        await caller.call(faulty, verb)
    assert await contents(caller.store) == before
    assert faulty.hit == faulty.plan


@pytest.mark.parametrize("verb", WRITING)
@pytest.mark.parametrize("kind", LOST)
async def test_an_error_after_the_write_loses_only_the_reply(
    caller: Caller, verb: Verb, kind: Kind
) -> None:
    before = await contents(caller.store)
    faulty = FaultyStore(caller.store, [Fault(verb, 1, kind)])
    with pytest.raises(LOST[kind]):
        await caller.call(faulty, verb)
    assert await contents(caller.store) != before


async def test_the_lost_reply_of_a_claim_is_answered_again(caller: Caller) -> None:
    faulty = FaultyStore(caller.store, [Fault(Verb.CLAIM, 1, Kind.TIMEOUT)])
    with pytest.raises(TimeoutError):
        await faulty.claim(caller.claim())
    assert await faulty.claim(caller.claim()) == []
    again = await faulty.claim(caller.claim(repeated=True))
    assert [lease.id for lease in again] == [execution_id(1)]


async def test_the_lost_reply_of_an_insert_is_answered_again(caller: Caller) -> None:
    faulty = FaultyStore(caller.store, [Fault(Verb.INSERT, 1, Kind.AFTER)])
    with pytest.raises(StoreUnavailable):
        await caller.call(faulty, Verb.INSERT)
    now_ms = caller.clock.now_ms()
    answers = await faulty.insert(submissions([order(2)], now_ms), now_ms)
    assert [answer.created for answer in answers] == [False]


async def test_the_named_call_fails_and_no_other(caller: Caller) -> None:
    faulty = FaultyStore(caller.store, [Fault(Verb.NOW, 3, Kind.BEFORE, times=2)])
    failed = []
    for call in range(1, 7):
        try:
            await faulty.now()
        except StoreUnavailable:
            failed.append(call)
    assert failed == [3, 4]
    assert faulty.calls[Verb.NOW] == 6


async def test_calls_of_all_verbs_can_be_counted_together(caller: Caller) -> None:
    faulty = FaultyStore(caller.store, [Fault(Verb.ANY, 3, Kind.BEFORE)])
    await faulty.now()
    await faulty.find(Query())
    with pytest.raises(StoreUnavailable):
        await faulty.lanes("", 10)
    assert await faulty.lanes("", 10) == await caller.store.lanes("", 10)


async def test_faults_can_be_added_later(caller: Caller) -> None:
    faulty = FaultyStore(caller.store)
    await faulty.now()
    faulty.plan.append(Fault(Verb.NOW, 2, Kind.BEFORE))
    with pytest.raises(StoreUnavailable):
        await faulty.now()


async def test_a_delayed_call_waits_for_its_hook(caller: Caller) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def hook() -> None:
        reached.set()
        await go_on.wait()

    faulty = FaultyStore(caller.store, [Fault(Verb.APPLY, 1, Kind.DELAY, hook=hook)])
    call = asyncio.create_task(caller.call(faulty, Verb.APPLY))
    await reached.wait()
    states = [row.state for row in await caller.store.find(Query())]
    assert states == [State.ACTIVE, State.WAITING]
    go_on.set()
    assert await call == [Applied(execution_id(0))]


async def test_hints_are_those_of_the_store_within(caller: Caller) -> None:
    faulty = FaultyStore(caller.store)
    assert faulty.hints is caller.store.hints
    heard: list[object] = []
    faulty.hints.subscribe(heard.append)
    await caller.call(faulty, Verb.INSERT)
    assert heard
