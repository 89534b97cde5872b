"""The truth table of what keeps an execution from running, over every combination of facts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import msgspec
import pytest

from flowfabric.core.model import Admission, Loss
from flowfabric.core.settle import Facts, Settled, facts_of, settle
from flowfabric.core.states import CLAIMABLE, RUNNABLE, AttemptKind, Reason, State
from tests.core.build import NOW, changed, submitted
from tests.core.walk import reach

PAST, FUTURE = NOW - 1, NOW + 1
RECHECK, DEADLINE = NOW + 50, NOW + 100


def combinations() -> Iterator[Facts]:
    for paused, deps_open, not_before, admission, lost, next_kind, recheck, deadline in product(
        (False, True),
        (False, True),
        (None, PAST, NOW, FUTURE),
        Admission,
        Loss,
        AttemptKind,
        (None, RECHECK),
        (None, PAST, DEADLINE),
    ):
        yield Facts(
            paused=paused,
            deps_open=deps_open,
            not_before_ms=not_before,
            admission=admission,
            lost=lost,
            next_kind=next_kind,
            recheck_ms=recheck,
            deadline_ms=deadline,
        )


ALL = list(combinations())

# The first line that fits decides.
ORDER = ["operator", "dependencies", "time", "admission", "expired", "revoked", "nothing"]

ANSWER = {
    "operator": ("blocked_operator", "paused_by_operator"),
    "dependencies": ("blocked_dependencies", "waiting_for_children"),
    "expired": ("orphaned", "waiting_for_worker"),
    "revoked": ("revoked", "waiting_for_worker"),
    "nothing": ("waiting", "waiting_for_worker"),
}
BY_GATE = {
    "budget": ("blocked_budget", "waiting_for_budget"),
    "quota": ("blocked_quota", "waiting_for_quota"),
    "route": ("blocked_route", "waiting_for_capable_worker"),
    "lane": ("blocked_lane", "paused_by_policy"),
}


def reasons_not_to_run(facts: Facts) -> list[str]:
    held = {
        "operator": facts.paused,
        "dependencies": facts.deps_open,
        "time": facts.not_before_ms == FUTURE,
        "admission": facts.admission != "none",
        "expired": facts.lost == "expired",
        "revoked": facts.lost == "revoked",
        "nothing": True,
    }
    return [name for name in ORDER if held[name]]


def expected(facts: Facts) -> tuple[str, str]:
    first = reasons_not_to_run(facts)[0]
    if first == "admission":
        return BY_GATE[facts.admission]
    if first == "time":
        is_retry = facts.next_kind == "retry"
        return "delayed", "waiting_for_retry_backoff" if is_retry else "waiting_for_delay"
    return ANSWER[first]


def test_every_combination_of_facts_settles_as_the_order_says() -> None:
    assert len(ALL) == 2 * 2 * 4 * 5 * 3 * 5 * 2 * 3
    for facts in ALL:
        settled = settle(facts, NOW)
        assert (settled.state, settled.reason) == expected(facts)


def test_every_combination_arms_the_timer_of_its_state_and_the_deadline() -> None:
    for facts in ALL:
        settled = settle(facts, NOW)
        wake = facts.recheck_ms if facts.admission != "none" else None
        if settled.state is State.DELAYED:
            wake = FUTURE
        known = [instant for instant in (wake, facts.deadline_ms) if instant is not None]
        assert settled.due_ms == (min(known) if known else None)


def test_settling_never_ends_anything_and_never_starts_it() -> None:
    assert {settle(facts, NOW).state for facts in ALL} == RUNNABLE | CLAIMABLE


@pytest.mark.parametrize(
    ("fact", "gone"),
    [
        ("paused", False),
        ("deps_open", False),
        ("not_before_ms", None),
        ("admission", Admission.NONE),
    ],
)
def test_taking_one_reason_away_never_releases_past_another(fact: str, gone: object) -> None:
    for facts in ALL:
        others = reasons_not_to_run(msgspec.structs.replace(facts, **{fact: gone}))
        is_free = settle(msgspec.structs.replace(facts, **{fact: gone}), NOW).state in CLAIMABLE
        kept_by = {"operator", "dependencies", "time", "admission"} & set(others)
        assert is_free == (not kept_by)


@pytest.mark.parametrize("instant", [NOW - 1, NOW])
def test_a_pause_is_over_at_its_very_end(instant: int) -> None:
    facts = Facts(deadline_ms=None, next_kind=AttemptKind.INITIAL, not_before_ms=instant)
    assert settle(facts, NOW).state is State.WAITING
    assert settle(facts, instant - 1).state is State.DELAYED


def test_what_is_neither_running_nor_over_is_where_its_facts_put_it() -> None:
    """Holds after every decision, at the moment of the decision."""
    for move in reach().moves:
        row, now = move.after
        if row.state in RUNNABLE | CLAIMABLE and "state" in move.patch:
            settled = settle(facts_of(row), now)
            assert Settled(row.state, row.reason, row.due_ms, row.not_before_ms) == settled


def test_the_facts_of_a_row_are_its_columns() -> None:
    row = changed(
        submitted(),
        deadline_ms=1,
        next_kind=AttemptKind.RETRY,
        not_before_ms=2,
        paused=True,
        deps_open=True,
        admission=Admission.QUOTA,
        recheck_ms=3,
        lost=Loss.REVOKED,
    )
    facts = facts_of(row)
    assert {name: getattr(row, name) for name in Facts.__struct_fields__} == {
        name: getattr(facts, name) for name in Facts.__struct_fields__
    }


def test_a_settled_patch_names_state_reason_and_timer_and_what_is_added() -> None:
    settled = Settled(State.WAITING, Reason.WAITING_FOR_WORKER, None, None)
    assert settled.patch(epoch=3) == {
        "state": State.WAITING,
        "reason": Reason.WAITING_FOR_WORKER,
        "due_ms": None,
        "not_before_ms": None,
        "epoch": 3,
    }
