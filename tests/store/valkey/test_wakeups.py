"""Wake-ups between processes: each store here stands for a process of its own."""

from __future__ import annotations

import asyncio
import threading

from flowfabric.core.lifecycle import complete
from flowfabric.core.operator import Source, cancel
from flowfabric.core.states import LaneState
from flowfabric.core.transition import Changeset, LaneChange
from flowfabric.store.hints import Hint
from flowfabric.store.notices import joined
from flowfabric.store.valkey import ValkeyStore
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import ROUTE, execution_id, order
from flowfabric.testing.conformance.steps import apply, commit, put, take
from flowfabric.testing.flows import flow_id
from flowfabric.testing.servers import ValkeyServer
from tests.store.valkey.conftest import Opener
from tests.store.valkey.raw import ask_all


class Ear:
    """Hears what a store tells, and can wait for a hint of a kind."""

    def __init__(self, store: ValkeyStore) -> None:
        self.heard: asyncio.Queue[Hint] = asyncio.Queue()
        store.hints.subscribe(self.heard.put_nowait)

    async def next(self) -> Hint:
        return await self.heard.get()


async def listening(store: ValkeyStore) -> Ear:
    """The first thing that is heard is that anything may have happened before."""
    ear = Ear(store)
    assert await ear.next() == Hint(foreign=True)
    return ear


async def test_new_work_of_another_process_is_heard(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    here, there = opener(url), opener(url)
    await here.migrate()
    await there.migrate()
    ear = await listening(here)
    await put(there, clock, order(0))
    assert (await ear.next()).ready
    await put(there, clock, order(1, delay_until_ms=clock.now_ms() + 700))
    assert (await ear.next()).due_ms == clock.now_ms() + 700


def test_what_is_gathered_says_all_that_its_hints_say() -> None:
    first = Hint(due_ms=2, ended=(execution_id(1),), flows=(flow_id(1),))
    second = Hint(ready=(ROUTE,), due_ms=1, fenced=(execution_id(2),), flows=(flow_id(2),))
    assert joined(first, second) == Hint(
        ready=(ROUTE,),
        due_ms=1,
        ended=(execution_id(1),),
        fenced=(execution_id(2),),
        flows=(flow_id(1), flow_id(2)),
    )


async def test_ends_and_lost_leases_of_another_process_are_heard(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    here, there = opener(url), opener(url)
    await here.migrate()
    await there.migrate()
    await put(there, clock, order(0), order(1))
    leases = await take(there, clock, 2)
    ear = await listening(here)
    await apply(there, clock, complete(leases[0], clock.now_ms(), b""))
    assert (await ear.next()).ended == (leases[0].id,)
    await commit(there, clock, [cancel(leases[1].head, clock.now_ms(), "", source=Source.OPERATOR)])
    hint = await ear.next()
    assert (hint.ended, hint.fenced) == ((leases[1].id,), (leases[1].id,))


async def test_many_ends_at_once_are_told_as_one(
    opener: Opener, server: ValkeyServer, clock: VirtualClock
) -> None:
    """Who waits for one of them reads the log."""
    here, there = opener(server.url), opener(server.url)
    await here.migrate()
    await there.migrate()
    await put(there, clock, *(order(n) for n in range(70)))
    leases = await take(there, clock, 70)
    ear = await listening(here)
    await apply(there, clock, *(complete(lease, clock.now_ms(), b"") for lease in leases))
    hint = await ear.next()
    assert (hint.foreign, hint.ended) == (True, ())


async def test_what_this_process_wrote_is_told_once(
    opener: Opener, server: ValkeyServer, clock: VirtualClock
) -> None:
    """Its own notice comes back from the server as well, and is passed over."""
    here, there = opener(server.url), opener(server.url)
    await here.migrate()
    await there.migrate()
    ear = await listening(here)
    await put(here, clock, order(0))
    assert await ear.next() == Hint(ready=(ROUTE,))
    await put(there, clock, order(1, delay_until_ms=clock.now_ms() + 5))
    assert await ear.next() == Hint(due_ms=clock.now_ms() + 5)
    assert ear.heard.empty()


async def test_a_lane_that_changed_elsewhere_may_have_work(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    here, there = opener(url), opener(url)
    await here.migrate()
    await there.migrate()
    ear = await listening(here)
    change = LaneChange("main", 0, LaneState.ACTIVE)
    assert await there.commit(Changeset(lanes=[change]), clock.now_ms())
    assert (await ear.next()).ready


async def test_a_listener_that_was_cut_off_listens_again(
    opener: Opener, server: ValkeyServer, clock: VirtualClock
) -> None:
    here, there = opener(server.url), opener(server.url)
    await here.migrate()
    await there.migrate()
    ear = await listening(here)
    await ask_all(there, "CLIENT", "KILL", "TYPE", "pubsub")
    assert await ear.next() == Hint(foreign=True)
    await put(there, clock, order(0))
    assert (await ear.next()).ready


async def test_another_loop_listens_on_when_the_first_one_ends(
    opener: Opener, server: ValkeyServer, clock: VirtualClock
) -> None:
    here, there = opener(server.url), opener(server.url)
    await here.migrate()
    await there.migrate()
    started, over = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    async def first() -> None:
        await listening(here)
        loop.call_soon_threadsafe(started.set)
        await asyncio.to_thread(over.wait)

    thread = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(first())))
    await started.wait()
    ear = Ear(here)
    over.set()
    await thread
    assert await ear.next() == Hint(foreign=True)
    await put(there, clock, order(0))
    assert (await ear.next()).ready


async def test_garbage_on_the_channel_may_have_been_anything(
    opener: Opener, server: ValkeyServer
) -> None:
    here = opener(server.url)
    await here.migrate()
    ear = await listening(here)
    await ask_all(here, "PUBLISH", here.keys.shared("wake"), b"\xff garbage")
    assert await ear.next() == Hint(foreign=True)
