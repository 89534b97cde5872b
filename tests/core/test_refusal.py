"""Why a guarded write is refused, in which order, and when a refusal is the answer of the first."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flowfabric.core.ids import public_id
from flowfabric.core.lifecycle import Failure, complete, delay, fail, release, start
from flowfabric.core.model import Execution, Lease
from flowfabric.core.operator import Source, cancel, replay
from flowfabric.core.refusal import (
    completed_by,
    delayed_by,
    failed_by,
    is_owner,
    not_active,
    not_found,
    refusal_of_lease,
    retried_by,
    returned_by,
    started_by,
)
from flowfabric.core.states import CLAIMABLE, RUNNABLE, TERMINAL, State
from flowfabric.core.timers import on_due
from flowfabric.errors import ExecutionNotActive, ExecutionNotFound
from tests.core.build import (
    ID,
    NOW,
    PAUSE,
    TTL,
    applied,
    ask,
    changed,
    granted,
    lease_of,
    limited,
    resuming,
    retrying,
    running,
    sample,
    submitted,
    taken,
)
from tests.core.walk import reach

MINE = lease_of(running())
THEIRS = lease_of(changed(running(), lease_token="token-b", epoch=9))


def code(row: Execution | None, lease: Lease, now_ms: int = NOW) -> str | None:
    refusal = refusal_of_lease(row, lease, now_ms)
    return None if refusal is None else refusal.code


# The order


def test_what_is_not_there_comes_first() -> None:
    assert code(None, THEIRS, NOW + 9 * TTL) == "execution_not_found"


@pytest.mark.parametrize("state", sorted((RUNNABLE | TERMINAL) | {State.SUSPENDED}))
def test_not_being_active_comes_before_everything_about_the_lease(state: State) -> None:
    row = changed(sample(state), lease_until_ms=NOW - 1)
    assert code(row, MINE) == code(row, THEIRS) == "execution_not_active"


def test_being_revoked_comes_before_being_over_or_somebody_elses() -> None:
    row = changed(sample(State.REVOKED), lease_until_ms=NOW - 1)
    assert code(row, MINE) == code(row, THEIRS) == "lease_revoked"


def test_being_over_comes_before_being_somebody_elses() -> None:
    lost = sample(State.ORPHANED)
    assert code(lost, MINE) == code(lost, THEIRS) == "lease_expired"
    assert code(running(), THEIRS, NOW + TTL) == "lease_expired"
    assert code(changed(running(), lease_until_ms=None), MINE) == "lease_expired"


@pytest.mark.parametrize("other", [{"epoch": 2}, {"epoch": 0}, {"lease_token": "token-b"}])
def test_a_live_lease_of_somebody_else_comes_last(other: dict[str, object]) -> None:
    assert code(changed(running(), **other), MINE) == "stale_lease"


def test_a_lease_in_the_wrong_phase_is_stale() -> None:
    assert code(granted(), MINE) == "stale_lease"
    assert code(running(), lease_of(granted())) == "stale_lease"


def test_nothing_is_refused_to_the_holder() -> None:
    assert code(running(), MINE) is None
    assert code(granted(), lease_of(granted())) is None


def test_a_lease_is_over_at_its_very_end() -> None:
    assert code(running(), MINE, NOW + TTL - 1) is None
    assert code(running(), MINE, NOW + TTL) == "lease_expired"


@pytest.mark.parametrize("state", sorted(CLAIMABLE - RUNNABLE))
def test_a_reclaimed_execution_tells_its_former_holder_that_somebody_has_it(state: State) -> None:
    again = taken(sample(state), ask(worker="worker-b", token="token-b"))
    refusal = refusal_of_lease(again, MINE, NOW)
    assert refusal is not None
    assert refusal.code == "stale_lease"
    assert "worker-b" in refusal.message


def test_every_reachable_row_answers_every_lease() -> None:
    """Exactly the holder of a live lease is not refused."""
    for row, now in reach().spots:
        is_live = row.lease_until_ms is not None and row.lease_until_ms > now
        assert (code(row, lease_of(row), now) is None) == is_live
        assert code(row, THEIRS, now) is not None


# What a refusal says


def test_a_refusal_of_something_not_there_names_it() -> None:
    refusal = not_found(ID)
    assert isinstance(refusal, ExecutionNotFound)
    assert refusal.details == {"execution": public_id(ID)}
    assert "not found" in refusal.message


@pytest.mark.parametrize(
    ("state", "outcome", "phase", "reason"),
    [
        ("completed", "success", "terminal", ""),
        ("failed", "failed", "terminal", "broke"),
        ("cancelled", "cancelled", "terminal", "no"),
        ("waiting", "none", "runnable", ""),
        ("suspended", "none", "suspended", ""),
    ],
)
def test_a_refusal_says_what_happened_instead(
    state: str, outcome: str, phase: str, reason: str
) -> None:
    row = sample(State(state))
    refusal = not_active(row)
    assert isinstance(refusal, ExecutionNotActive)
    assert refusal.details == {
        "terminal_outcome": outcome,
        "lease_epoch": row.epoch,
        "lifecycle_phase": phase,
        "attempt": row.attempt,
        "state": state,
        "reason": reason,
    }


# Repeated calls

Done = Callable[[Execution, Lease], bool]

PREDICATES: dict[str, Done] = {
    "complete": completed_by,
    "fail": failed_by,
    "retry": retried_by,
    "delay": delayed_by,
    "start": started_by,
}


def after(verb: str) -> tuple[Lease, Execution]:
    """The lease that a worker still shows, and the row after its first call."""
    row = granted() if verb == "start" else running(policy=retrying(1))
    lease = lease_of(row)
    spent = changed(row, retry_count=1)
    said = {
        "complete": lambda: complete(lease, NOW, b"1"),
        "fail": lambda: fail(lease_of(spent), NOW, Failure("broke")),
        "retry": lambda: fail(lease, NOW, Failure("broke")),
        "delay": lambda: delay(lease, NOW, NOW + PAUSE),
        "start": lambda: start(lease, NOW),
    }[verb]()
    return lease, applied(row, said)


@pytest.mark.parametrize("verb", PREDICATES)
@pytest.mark.parametrize("asked", PREDICATES)
def test_a_repeated_call_is_recognised_by_its_own_effect_alone(verb: str, asked: str) -> None:
    lease, row = after(verb)
    assert PREDICATES[asked](row, lease) == (asked == verb)


@pytest.mark.parametrize("verb", PREDICATES)
@pytest.mark.parametrize("other", [{"lease_token": "token-b"}, {"epoch": 7}])
def test_the_same_effect_by_somebody_else_is_not_ours(verb: str, other: dict[str, object]) -> None:
    lease, row = after(verb)
    assert not PREDICATES[verb](changed(row, **other), lease)


@pytest.mark.parametrize("verb", PREDICATES)
def test_before_the_first_call_nothing_is_recognised(verb: str) -> None:
    lease, _ = after(verb)
    assert not PREDICATES[verb](lease.head, lease)


@pytest.mark.parametrize("verb", ["retry", "delay"])
def test_a_repeated_call_is_recognised_after_the_pause_too(verb: str) -> None:
    lease, row = after(verb)
    assert row.due_ms is not None
    promoted = applied(row, on_due(row, row.due_ms).transition)
    assert promoted.state is State.WAITING
    assert PREDICATES[verb](promoted, lease)


@pytest.mark.parametrize("verb", ["retry", "delay"])
def test_once_somebody_took_it_again_the_effect_is_gone(verb: str) -> None:
    lease, row = after(verb)
    again = taken(changed(row, state=State.WAITING), ask(token="token-b"))
    assert not PREDICATES[verb](again, lease)


@pytest.mark.parametrize("verb", ["retry", "delay"])
def test_a_cancel_after_the_first_call_is_told_and_not_hidden(verb: str) -> None:
    lease, row = after(verb)
    over = applied(row, cancel(row, NOW, "no", source=Source.OPERATOR))
    assert not any(asked(over, lease) for asked in PREDICATES.values())
    assert code(over, lease) == "execution_not_active"


@pytest.mark.parametrize("verb", ["complete", "fail"])
def test_a_replay_after_the_first_call_is_told_and_not_hidden(verb: str) -> None:
    lease, row = after(verb)
    again = applied(row, replay(row, NOW))
    assert not any(asked(again, lease) for asked in PREDICATES.values())


def test_a_lease_that_was_given_back_is_recognised_like_a_delay() -> None:
    row = running()
    assert delayed_by(applied(row, release(lease_of(row), NOW)), lease_of(row))


@pytest.mark.parametrize(
    "before", [submitted(), resuming(), sample(State.ORPHANED)], ids=lambda row: row.state
)
def test_a_grant_that_was_given_back_is_recognised(before: Execution) -> None:
    grant = granted(before)
    after_release = applied(grant, release(lease_of(grant), NOW))
    assert returned_by(after_release, lease_of(grant))
    assert not returned_by(grant, lease_of(grant))
    assert not returned_by(changed(after_release, epoch=9), lease_of(grant))


def test_a_lease_that_ran_is_not_a_grant_that_was_given_back() -> None:
    assert not returned_by(resuming(), MINE)


def test_a_failure_by_the_reclaim_cap_is_nobodys_own() -> None:
    row = running(policy=retrying(timeout=limited(reclaims=0)))
    over = applied(row, on_due(row, NOW + TTL).transition)
    assert over.state is State.FAILED
    assert not failed_by(over, lease_of(row))


def test_owning_is_token_and_epoch_together() -> None:
    assert is_owner(running(), MINE)
    assert is_owner(sample(State.COMPLETED), MINE)
    assert not is_owner(submitted(), MINE)
    assert not is_owner(taken(resuming(), ask()), MINE)
