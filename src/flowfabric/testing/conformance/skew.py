"""Clocks: a caller whose clock is off is refused before anything is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from flowfabric.core.entries import Append, Entry
from flowfabric.core.lifecycle import complete
from flowfabric.core.model import Submission
from flowfabric.core.states import LaneState
from flowfabric.core.transition import Changeset, Held, LaneChange
from flowfabric.errors import ClockSkew, StoreUnavailable
from flowfabric.store.clock import FollowingClock
from flowfabric.store.protocol import Store
from flowfabric.testing.build import LANE, OTHER_TOKEN, TOKEN, ask, execution_id, order, submissions
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import TOPIC, contents, put, put_and_take

NOTE = Entry(TOPIC, "key", b"")
Write = Callable[[int], Awaitable[object]]


def submitted_with_a_key(now_ms: int) -> list[Submission]:
    return submissions([order(3, key="key", digest="digest")], now_ms)


async def writes(store: Store, clock: VirtualClock) -> dict[str, Write]:
    """Each writing verb with something to write, as a function of the caller's time."""
    lease = await put_and_take(store, clock, order(0))
    other = await put_and_take(store, clock, order(1))
    await put(store, clock, order(2))
    late_ms = clock.now_ms()
    changes = Changeset([complete(other, late_ms, b"")])
    lanes = Changeset(lanes=[LaneChange("new", 0, LaneState.PAUSED)])
    return {
        "insert": lambda now_ms: store.insert(submissions([order(3)], now_ms), now_ms),
        "insert with a key": lambda now_ms: store.insert(submitted_with_a_key(now_ms), now_ms),
        "claim": lambda now_ms: store.claim(ask(now_ms, token=OTHER_TOKEN)),
        "claim of several lanes": lambda now_ms: store.claim(
            ask(now_ms, token=OTHER_TOKEN, lanes=(LANE, "other"))
        ),
        "claim of one": lambda now_ms: store.claim(
            ask(now_ms, token=OTHER_TOKEN, only=execution_id(2))
        ),
        "apply": lambda now_ms: store.apply([complete(lease, late_ms, b"")], now_ms),
        "urgent apply": partial(store.apply, [complete(lease, late_ms, b"")], urgent=True),
        "append": partial(store.append, [Append(lease.id, Held(1, TOKEN), (NOTE,))]),
        "commit": partial(store.commit, changes),
        "commit of lanes": partial(store.commit, lanes),
        "empty insert": partial(store.insert, []),
        "empty apply": partial(store.apply, []),
        "empty append": partial(store.append, []),
        "empty commit": partial(store.commit, Changeset()),
        "repeated claim": lambda now_ms: store.claim(ask(now_ms, repeated=True)),
    }


WRITING = (
    "insert",
    "insert with a key",
    "claim",
    "claim of several lanes",
    "claim of one",
    "apply",
    "urgent apply",
    "append",
    "commit",
    "commit of lanes",
)
VERBS = (*WRITING, "empty insert", "empty apply", "empty append", "empty commit", "repeated claim")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("off_ms", [-5_000, -501, 501, 5_000])
async def test_a_caller_whose_clock_is_off_writes_nothing(
    store: Store, clock: VirtualClock, verb: str, off_ms: int
) -> None:
    write = (await writes(store, clock))[verb]
    before = await contents(store)
    with pytest.raises(ClockSkew) as refused:
        await write(clock.now_ms() + off_ms)
    assert isinstance(refused.value, StoreUnavailable)
    assert refused.value.store_now_ms == clock.now_ms()
    assert await contents(store) == before


@pytest.mark.parametrize("verb", WRITING)
@pytest.mark.parametrize("off_ms", [-500, 500])
async def test_a_clock_that_is_off_by_the_limit_will_do(
    store: Store, clock: VirtualClock, verb: str, off_ms: int
) -> None:
    write = (await writes(store, clock))[verb]
    before = await contents(store)
    await write(clock.now_ms() + off_ms)
    assert await contents(store) != before


async def test_one_caller_whose_clock_is_off_disturbs_no_other(
    store: Store, clock: VirtualClock
) -> None:
    write = await writes(store, clock)
    with pytest.raises(ClockSkew):
        await write["insert"](clock.now_ms() + 501)
    assert await write["commit"](clock.now_ms()) is True


async def test_reading_is_not_judged_by_the_clock(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(0, delay_until_ms=clock.now_ms() + 60_000))
    assert len((await store.due(clock.now_ms() + 60_000, 10)).rows) == 1


@pytest.mark.parametrize("verb", WRITING)
async def test_a_decision_that_is_old_is_written_if_its_callers_clock_is_right(
    store: Store, clock: VirtualClock, verb: str
) -> None:
    """Work that takes long is no clock that is off."""
    write = (await writes(store, clock))[verb]
    before = await contents(store)
    store.caller_clock = FollowingClock(clock)
    decided_ms = clock.now_ms()
    clock.advance(4_000)
    await write(decided_ms)
    assert await contents(store) != before


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("off_ms", [-5_000, -501, 501, 5_000])
async def test_what_is_compared_is_the_callers_clock_when_the_call_is_sent(
    store: Store, clock: VirtualClock, verb: str, off_ms: int
) -> None:
    write = (await writes(store, clock))[verb]
    before = await contents(store)
    store.caller_clock = FollowingClock(VirtualClock(clock.now_ms() + off_ms))
    with pytest.raises(ClockSkew) as refused:
        await write(min(clock.now_ms(), clock.now_ms() + off_ms))
    assert refused.value.store_now_ms == clock.now_ms()
    assert refused.value.details["caller_now_ms"] == clock.now_ms() + off_ms
    assert await contents(store) == before


@pytest.mark.parametrize("verb", VERBS)
async def test_nothing_is_decided_in_the_future(
    store: Store, clock: VirtualClock, verb: str
) -> None:
    """A caller's clock that was set back since is right, and its decision is not."""
    write = (await writes(store, clock))[verb]
    before = await contents(store)
    store.caller_clock = FollowingClock(clock)
    with pytest.raises(ClockSkew):
        await write(clock.now_ms() + 501)
    assert await contents(store) == before
