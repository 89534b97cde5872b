"""What a dispatcher was told of is looked at again when whoever took it would have let go."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric.engine.dispatcher import LEASE_MS, NET_SECONDS, TAKE_OVER_SECONDS, Dispatcher
from flowfabric.store.clock import FollowingClock
from flowfabric.store.hints import Hint
from flowfabric.store.memory import MemoryStore
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.flows import FLOW


@pytest.fixture
def dispatcher() -> Dispatcher:
    clock = VirtualClock()
    return Dispatcher(MemoryStore(clock), FollowingClock(clock))


def test_looks_come_after_the_lease_and_soon() -> None:
    first, *_, last = TAKE_OVER_SECONDS
    assert LEASE_MS / 1000 < first < last < LEASE_MS / 1000 + NET_SECONDS


@pytest.mark.parametrize(("hints", "looks"), [(1, 2), (2, 3), (5, 3)])
async def test_each_time_of_hearing_is_followed_by_a_look(
    dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch, hints: int, looks: int
) -> None:
    monkeypatch.setattr("flowfabric.engine.dispatcher.TAKE_OVER_SECONDS", (0.0, 0.0))
    dispatcher._is_asked = False
    for _ in range(hints):
        dispatcher.hear(Hint(flows=(FLOW,)))
    for _ in range(looks):
        async with asyncio.timeout(30):
            while not dispatcher._is_asked:  # noqa: ASYNC110
                await asyncio.sleep(0)
        dispatcher._is_asked = False
    assert dispatcher._later is None
    assert dispatcher.loop._woken.is_set()


async def test_what_says_nothing_of_flows_is_followed_by_none(dispatcher: Dispatcher) -> None:
    dispatcher.hear(Hint(ready=True))
    assert dispatcher._later is None
