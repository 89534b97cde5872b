"""The invariants say nothing about a sound store, and something about each that is not."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import Failure
from flowfabric.core.model import Lane, Loaded
from flowfabric.core.states import AttemptLifecycle, AttemptState, Reason, State
from flowfabric.store.memory import MemoryStore
from flowfabric.testing.build import LANE, execution_id, order, policy
from flowfabric.testing.claiming import Ask, claim, submit
from flowfabric.testing.clock import START_MS, VirtualClock
from flowfabric.testing.driver import Driver
from flowfabric.testing.ending import finish_everything
from flowfabric.testing.history import broken_change
from flowfabric.testing.invariants import broken
from flowfabric.testing.picture import Picture

DONE, RUNNING, GRANTED, RETRYING, PAUSED, LATER, READY = (execution_id(n) for n in range(7))


async def sound() -> Driver:
    """One execution in each of seven situations."""
    clock = VirtualClock()
    driver = Driver(MemoryStore(clock), clock)
    await driver.open()
    for number in range(7):
        later = START_MS + 1_000 if execution_id(number) == LATER else None
        await submit(driver, order(number, policy=policy(retries=1), delay_until_ms=later))
    engine = driver.engine
    for starts in (True, True, False, True):
        await claim(driver, Ask((LANE,), start=starts))
    done, _, _, retrying = driver.leases
    await driver.do(lambda: engine.complete(done, b"result"))
    await driver.do(lambda: engine.fail(retrying, Failure("broke")))
    await driver.do(lambda: engine.block(PAUSED, Reason.PAUSED_BY_OPERATOR))
    return driver


def with_row(picture: Picture, id: ExecutionId, **columns: object) -> Picture:
    loaded = picture.loaded[id]
    head = msgspec.structs.replace(loaded.head, **columns)
    return with_loaded(picture, msgspec.structs.replace(loaded, head=head))


def with_loaded(picture: Picture, loaded: Loaded) -> Picture:
    return msgspec.structs.replace(picture, loaded={**picture.loaded, loaded.head.id: loaded})


def with_attempt(picture: Picture, id: ExecutionId, **columns: object) -> Picture:
    loaded = picture.loaded[id]
    attempts = (msgspec.structs.replace(loaded.attempts[0], **columns),)
    return with_loaded(picture, msgspec.structs.replace(loaded, attempts=attempts))


def without_line(picture: Picture, kind: str) -> Picture:
    return msgspec.structs.replace(picture, log=[one for one in picture.log if one.kind != kind])


Harm = Callable[[Picture], Picture]

HARMS: dict[str, Harm] = {
    "a timer that is late": lambda p: with_row(p, RUNNING, lease_until_ms=START_MS + 1),
    "a delay without a timer": lambda p: with_row(p, LATER, due_ms=None),
    "a retry without a timer": lambda p: with_row(p, RETRYING, due_ms=None),
    "a timer after the end": lambda p: with_row(p, DONE, due_ms=START_MS),
    "a timer that the index lacks": lambda p: msgspec.structs.replace(p, timers=p.timers[1:]),
    "a timer that is overdue and not shown": lambda p: msgspec.structs.replace(
        p, now_ms=p.now_ms + 1_000
    ),
    "a pause overlooked": lambda p: with_row(p, READY, paused=True),
    "active without a lease": lambda p: with_row(p, RUNNING, lease_until_ms=None),
    "a lease of nobody": lambda p: with_row(p, RUNNING, worker=""),
    "a lease on what waits": lambda p: with_row(p, READY, lease_until_ms=START_MS),
    "a grant that runs": lambda p: with_row(p, GRANTED, attempt_state=AttemptState.RUNNING),
    "a state that no line tells": lambda p: with_row(
        p, READY, state=State.EXPIRED, reason=Reason.NONE, ended_ms=START_MS
    ),
    "an epoch that no line tells": lambda p: with_row(p, RUNNING, epoch=2),
    "a retry too many": lambda p: with_row(p, RETRYING, retry_count=2),
    "a reclaim that no line tells": lambda p: with_row(p, READY, reclaim_count=1),
    "an end without a time": lambda p: with_row(p, DONE, ended_ms=None),
    "no record of an attempt": lambda p: with_loaded(
        p, msgspec.structs.replace(p.loaded[DONE], attempts=())
    ),
    "an attempt that is still open": lambda p: with_attempt(
        p, DONE, lifecycle=AttemptLifecycle.SUSPENDED, ended_ms=None, result=None
    ),
    "a result of a failure": lambda p: with_attempt(p, RETRYING, result=b"1"),
    "another result than was told": lambda p: with_attempt(p, DONE, result=b"2"),
    "a lost line of a claim": lambda p: without_line(p, "claimed"),
    "a lost line of the end": lambda p: without_line(p, "completed"),
    "a lost beginning": lambda p: without_line(p, "submitted"),
    "a history of nobody": lambda p: msgspec.structs.replace(
        p, loaded={id: each for id, each in p.loaded.items() if id != DONE}
    ),
}


async def test_nothing_is_said_about_a_sound_store() -> None:
    driver = await sound()
    assert {row.state for row in driver.picture.rows} == {
        State.COMPLETED,
        State.ACTIVE,
        State.DELAYED,
        State.BLOCKED_OPERATOR,
        State.WAITING,
    }
    assert broken(driver.picture) == []


@pytest.mark.parametrize("harm", HARMS)
async def test_something_is_said_about_every_harm(harm: str) -> None:
    driver = await sound()
    assert broken(HARMS[harm](driver.picture)) != []


CHANGES: dict[str, Harm] = {
    "a write without a rev": lambda p: with_row(p, READY, progress_pct=50),
    "two revs for one write": lambda p: with_row(p, READY, rev=3),
    "a rev that falls": lambda p: with_row(p, RUNNING, rev=1),
    "an epoch that falls": lambda p: with_row(p, RUNNING, rev=3, epoch=0),
    "a change of state without a line": lambda p: with_row(p, READY, rev=2, state=State.DELAYED),
    "another lane": lambda p: with_row(p, READY, rev=2, lane="other"),
    "another record of an attempt": lambda p: with_attempt(
        with_row(p, DONE, rev=4), DONE, result=b"2"
    ),
    "a line gone": lambda p: without_line(p, "completed"),
    "an execution gone": lambda p: msgspec.structs.replace(
        p, loaded={id: each for id, each in p.loaded.items() if id != DONE}
    ),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_something_is_said_about_every_change_that_no_write_explains(change: str) -> None:
    before = (await sound()).picture
    assert broken_change(before, before, writes=1) == []
    assert broken_change(before, CHANGES[change](before), writes=1) != []


async def test_two_stores_with_one_history_are_alike() -> None:
    one, other = (await sound()).picture, (await sound()).picture
    assert one.alike() == other.alike()
    changed = msgspec.structs.replace(other, lanes=[Lane("elsewhere")])
    assert one.alike() != changed.alike()


async def test_everything_finishes_when_each_gets_what_it_waits_for() -> None:
    driver = await sound()
    await finish_everything(driver)
    assert {row.state for row in driver.picture.rows} == {State.COMPLETED}
