"""Hints: what a write made possible is told to those who listen in this process.

A hint may come twice or say too much; these tests only ask that it is not forgotten.
"""

from __future__ import annotations

import asyncio
import threading

from flowfabric.core.lifecycle import Failure, complete, delay, fail
from flowfabric.core.model import ANY_ROUTE
from flowfabric.core.operator import Source, cancel
from flowfabric.core.states import LaneState
from flowfabric.core.transition import Changeset, LaneChange
from flowfabric.store.hints import Hint
from flowfabric.store.protocol import Store
from flowfabric.testing.build import (
    LANE,
    OTHER_TOKEN,
    ROUTE,
    execution_id,
    order,
    policy,
    submissions,
)
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import apply, commit, put, put_and_take, take


class Ear:
    """Listens to a store and keeps what it heard of writes through this store.

    A store that begins to listen to others says that anything may have changed meanwhile.
    """

    def __init__(self, store: Store) -> None:
        self.heard: list[Hint] = []
        self._store = store
        store.hints.subscribe(self._hear)

    def _hear(self, hint: Hint) -> None:
        if hint != Hint(foreign=True):
            self.heard.append(hint)

    def stop(self) -> None:
        self._store.hints.unsubscribe(self._hear)

    @property
    def ready(self) -> set[str]:
        return {route for hint in self.heard for route in hint.ready}

    @property
    def due_ms(self) -> list[int]:
        return [hint.due_ms for hint in self.heard if hint.due_ms is not None]

    @property
    def ended(self) -> set[str]:
        return {id for hint in self.heard for id in hint.ended}


async def test_new_work_is_told(store: Store, clock: VirtualClock) -> None:
    ear = Ear(store)
    await put(store, clock, order(0))
    assert ear.ready == {ROUTE}


async def test_new_work_is_told_with_its_routes(store: Store, clock: VirtualClock) -> None:
    """Each once: whoever serves none of them need not look."""
    ear = Ear(store)
    later = order(3, kind="later", delay_until_ms=clock.now_ms() + 1)
    await put(store, clock, order(0), order(1, kind="mail"), order(2, kind="mail"), later)
    assert [sorted(hint.ready) for hint in ear.heard] == [[ROUTE, f"{LANE} mail"]]


async def test_new_work_for_later_is_told_with_its_instant(
    store: Store, clock: VirtualClock
) -> None:
    ear = Ear(store)
    now_ms = clock.now_ms()
    delays = (90, 30, 60)
    await put(store, clock, *(order(n, delay_until_ms=now_ms + d) for n, d in enumerate(delays)))
    assert min(ear.due_ms) == now_ms + 30
    assert not ear.ready


async def test_work_that_is_given_back_is_told(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0))
    ear = Ear(store)
    await apply(store, clock, delay(lease, clock.now_ms(), None))
    assert ear.ready == {ROUTE}


async def test_a_retry_is_told_with_its_instant(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0, policy=policy(retries=1, pause_ms=70)))
    ear = Ear(store)
    await apply(store, clock, fail(lease, clock.now_ms(), Failure("broke")))
    assert ear.due_ms == [clock.now_ms() + 70]


async def test_the_end_of_executions_is_told(store: Store, clock: VirtualClock) -> None:
    leases = [await put_and_take(store, clock, order(n)) for n in range(3)]
    ear = Ear(store)
    now_ms = clock.now_ms()
    await apply(store, clock, *(complete(lease, now_ms, b"") for lease in leases[:2]))
    await commit(store, clock, [cancel(leases[2].head, now_ms, "", source=Source.OPERATOR)])
    assert ear.ended == {execution_id(n) for n in range(3)}


async def test_a_changed_lane_may_have_work(store: Store, clock: VirtualClock) -> None:
    ear = Ear(store)
    change = LaneChange("main", 0, LaneState.ACTIVE)
    assert await store.commit(Changeset(lanes=[change]), clock.now_ms())
    assert ear.ready == {ANY_ROUTE}


async def test_a_changeset_tells_of_all_that_is_in_it(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0))
    await put(store, clock, order(1, priority=1))
    other = (await take(store, clock, token=OTHER_TOKEN))[0]
    ear = Ear(store)
    both = [complete(lease, clock.now_ms(), b""), delay(other, clock.now_ms(), None)]
    await commit(store, clock, both)
    assert (ear.ready, ear.ended) == ({ROUTE}, {lease.id})


async def test_a_refused_changeset_tells_nothing(store: Store, clock: VirtualClock) -> None:
    ear = Ear(store)
    change = LaneChange("main", 5, LaneState.ACTIVE)
    assert not await store.commit(Changeset(lanes=[change]), clock.now_ms())
    assert not ear.heard


async def test_who_stopped_listening_hears_nothing(store: Store, clock: VirtualClock) -> None:
    ear, other = Ear(store), Ear(store)
    ear.stop()
    await put(store, clock, order(0))
    assert (ear.heard, other.ready) == ([], {ROUTE})


async def test_a_listener_is_called_in_its_own_loop(store: Store, clock: VirtualClock) -> None:
    heard = asyncio.Event()
    threads: list[int] = []

    def listen(_: Hint) -> None:
        threads.append(threading.get_ident())
        heard.set()

    store.hints.subscribe(listen)
    batch = submissions([order(0)], clock.now_ms())
    await asyncio.to_thread(asyncio.run, store.insert(batch, clock.now_ms()))
    await heard.wait()
    assert set(threads) == {threading.get_ident()}


async def test_a_listener_whose_loop_is_gone_disturbs_nobody(
    store: Store, clock: VirtualClock
) -> None:
    async def listen_and_leave() -> None:
        store.hints.subscribe(lambda _: None)

    await asyncio.to_thread(lambda: asyncio.run(listen_and_leave()))
    ear = Ear(store)
    await put(store, clock, order(0))
    assert ear.ready == {ROUTE}
