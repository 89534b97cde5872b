"""What people and services may decide, about an execution in each of the seventeen states."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flowfabric.core.model import Admission, Execution, Loss
from flowfabric.core.operator import (
    ExpireReason,
    RevokeOutcome,
    Source,
    block,
    cancel,
    change_priority,
    expire,
    replay,
    revoke,
    set_tags,
    unblock,
)
from flowfabric.core.policy import Policy, encode_policy
from flowfabric.core.states import RUNNABLE, TERMINAL, AttemptKind, Reason, State
from flowfabric.core.transition import Seen, Transition
from flowfabric.errors import FlowFabricError, InvalidInput, ReplaysExhausted
from tests.core.build import (
    ATTEMPT_LIMIT,
    NOW,
    applied,
    blocked,
    changed,
    granted,
    lease_of,
    limited,
    retrying,
    running,
    sample,
    submitted,
)

# A word is the state that follows, `!word` a refusal with that code, `~word` an answer that
# changes nothing, and `-` no answer at all. `granted` is active and not started.
TABLE = """
                     cancel    expire  revoke  replay  priority  tags  pause  quota  unblock
waiting              cancelled expired ~none   !busy   waiting   same  pause  quota  !no
delayed              cancelled expired ~none   !busy   !no       same  pause  same   !no
blocked_dependencies cancelled expired ~none   !busy   !no       same  pause  same   !no
blocked_budget       cancelled expired ~none   !busy   !no       same  pause  !no    waiting
blocked_quota        cancelled expired ~none   !busy   !no       same  pause  same   waiting
blocked_route        cancelled expired ~none   !busy   !no       same  pause  !no    waiting
blocked_lane         cancelled expired ~none   !busy   !no       same  pause  !no    waiting
blocked_operator     cancelled expired ~none   !busy   !no       same  same   same   waiting
active               cancelled expired revoked !busy   !no       same  !no    !no    !no
granted              cancelled expired waiting !busy   !no       same  !no    !no    !no
orphaned             cancelled expired ~expired !busy  !no       same  !no    !no    !no
revoked              cancelled expired ~revoked !busy  !no       same  !no    !no    !no
suspended            cancelled expired ~none   !busy   !no       same  !no    !no    !no
completed            !over     -       !over   waiting !no       same  !over  !over  !over
failed               !over     -       !over   waiting !no       same  !over  !over  !over
cancelled            !over     -       !over   waiting !no       same  !over  !over  !over
expired              !over     -       !over   waiting !no       same  !over  !over  !over
skipped              !over     -       !over   waiting !no       same  !over  !over  !over
"""

SHORT = {
    "pause": "blocked_operator",
    "quota": "blocked_quota",
    "!no": "!execution_not_eligible",
    "!over": "!execution_not_active",
    "!busy": "!execution_not_terminal",
    "~none": "~no_active_lease",
    "~expired": "~already_expired",
    "~revoked": "~already_revoked",
}

VERBS: dict[str, Callable[[Execution], object]] = {
    "cancel": lambda row: cancel(row, NOW, "no", source=Source.OPERATOR),
    "expire": lambda row: expire(row, NOW, ExpireReason.EXECUTION_DEADLINE),
    "revoke": lambda row: revoke(row, NOW, "gone"),
    "replay": lambda row: replay(row, NOW),
    "priority": lambda row: change_priority(row, NOW, 9),
    "tags": lambda row: set_tags(row, NOW, {"demo.tenant": "acme"}),
    "pause": lambda row: block(row, NOW, Reason.PAUSED_BY_OPERATOR),
    "quota": lambda row: block(row, NOW, Reason.WAITING_FOR_QUOTA),
    "unblock": lambda row: unblock(row, NOW),
}


def cells() -> list[tuple[str, str, str]]:
    heading, *lines = TABLE.strip().splitlines()
    verbs = heading.split()
    assert verbs == list(VERBS)
    found = []
    for line in lines:
        name, *answers = line.split()
        found += [(name, verb, answer) for verb, answer in zip(verbs, answers, strict=True)]
    return found


def row_of(name: str) -> Execution:
    return granted() if name == "granted" else sample(State(name))


def answer_of(row: Execution, verb: str) -> str:
    try:
        said = VERBS[verb](row)
    except FlowFabricError as error:
        return f"!{error.code}"
    if isinstance(said, RevokeOutcome):
        assert said == RevokeOutcome(False, row.epoch, said.reason)
        return f"~{said.reason}"
    return "-" if said is None else applied(row, said).state


@pytest.mark.parametrize(("name", "verb", "answer"), cells())
def test_every_verb_answers_in_every_state_as_the_table_says(
    name: str, verb: str, answer: str
) -> None:
    row = row_of(name)
    given = answer_of(row, verb)
    assert given == SHORT.get(answer, row.state if answer == "same" else answer)


def test_the_table_speaks_of_every_state_once() -> None:
    names = [name for name, verb, _ in cells() if verb == "cancel"]
    assert sorted(names) == sorted([*State, "granted"])


# Cancelling


@pytest.mark.case("LC-012")
def test_a_holder_must_show_its_lease_to_cancel_what_is_held() -> None:
    with pytest.raises(InvalidInput) as caught:
        cancel(running(), NOW, "no", source=Source.LEASE_HOLDER)
    assert caught.value.code == "fence_required"
    assert caught.value.message == "a lease is required to cancel running work"
    assert caught.value.field == "lease"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("orphaned", "lease_expired"),
        ("revoked", "lease_revoked"),
        ("suspended", "execution_not_active"),
        ("completed", "execution_not_active"),
    ],
)
def test_a_holder_is_refused_when_its_lease_is_gone(name: str, code: str) -> None:
    with pytest.raises(FlowFabricError) as caught:
        cancel(row_of(name), NOW, "no", source=Source.LEASE_HOLDER, lease=lease_of(running()))
    assert caught.value.code == code


def test_a_holder_cancels_with_its_own_lease_and_not_with_an_old_one() -> None:
    row = running()
    said = cancel(row, NOW, "no", source=Source.LEASE_HOLDER, lease=lease_of(row))
    assert applied(row, said).state is State.CANCELLED
    other = lease_of(changed(row, lease_token="token-b"))
    with pytest.raises(FlowFabricError) as caught:
        cancel(row, NOW, "no", source=Source.LEASE_HOLDER, lease=other)
    assert caught.value.code == "stale_lease"


@pytest.mark.parametrize("state", sorted(RUNNABLE))
def test_nobody_needs_a_lease_to_cancel_what_nobody_holds(state: State) -> None:
    row = sample(state)
    assert applied(row, cancel(row, NOW, "no", source=Source.LEASE_HOLDER)).state == "cancelled"


@pytest.mark.parametrize("source", sorted(set(Source) - {Source.LEASE_HOLDER}))
def test_who_cancelled_is_kept(source: Source) -> None:
    said = cancel(running(), NOW, "enough", source=source)
    assert (said.patch["outcome_detail"], said.patch["outcome_category"]) == ("enough", source)
    assert said.log is not None
    assert said.log.detail == {"reason": "enough", "source": source}


# Expiring and revoking


@pytest.mark.case("TO-013")
@pytest.mark.parametrize("state", sorted(TERMINAL))
@pytest.mark.parametrize("reason", ExpireReason)
def test_what_is_over_is_not_expired_and_that_is_no_error(
    state: State, reason: ExpireReason
) -> None:
    assert expire(sample(state), NOW, reason) is None


@pytest.mark.case("LS-050")
def test_a_lease_of_another_worker_or_of_nobody_is_not_revoked() -> None:
    other = revoke(running(), NOW, "gone", worker="worker-b")
    assert other == RevokeOutcome(False, 1, "different_worker_instance_id")
    nobody = revoke(submitted(), NOW, "gone")
    assert nobody == RevokeOutcome(False, 0, "no_active_lease")


def test_a_lease_is_revoked_from_the_worker_that_is_named() -> None:
    row = running()
    assert applied(row, revoke(row, NOW, "gone", worker="worker-a")).state is State.REVOKED


# Replaying


@pytest.mark.case("LC-028")
@pytest.mark.parametrize("name", ["active", "granted", "waiting", "delayed", "suspended"])
def test_only_what_is_over_is_replayed(name: str) -> None:
    assert answer_of(row_of(name), "replay") == "!execution_not_terminal"


def test_a_replay_starts_with_fresh_counts_and_no_old_facts() -> None:
    policy = retrying(3, timeout=limited(attempt_ms=ATTEMPT_LIMIT))
    paused = blocked(Reason.PAUSED_BY_OPERATOR, submitted(policy=policy, delay_until_ms=NOW + 9))
    over = changed(
        applied(paused, cancel(paused, NOW, "no", source=Source.OPERATOR)),
        retry_count=3,
        reclaim_count=2,
        attempt=4,
        admission=Admission.LANE,
        recheck_ms=NOW + 5,
        lost=Loss.REVOKED,
        attempt_left_ms=1,
    )
    said = replay(over, NOW + 1, "fixed")
    row = applied(over, said)
    assert (row.retry_count, row.reclaim_count, row.replay_count) == (0, 0, 1)
    assert (row.paused, row.admission, row.not_before_ms) == (False, Admission.NONE, None)
    assert (row.recheck_ms, row.lost) == (None, Loss.NONE)
    assert (row.next_attempt, row.next_kind) == (5, AttemptKind.REPLAY)
    assert (row.attempt_left_ms, row.due_ms) == (ATTEMPT_LIMIT, None)
    assert (row.outcome_detail, row.outcome_category, row.ended_ms) == ("", "", None)
    assert said.log is not None
    assert said.log.detail == {"replay_count": 1, "reason": "fixed"}


@pytest.mark.parametrize(("deadline", "kept"), [(NOW + 1, NOW + 1), (NOW, None), (None, None)])
def test_a_deadline_survives_a_replay_only_while_it_is_to_come(
    deadline: int | None, kept: int | None
) -> None:
    over = changed(sample(State.EXPIRED), deadline_ms=deadline)
    row = applied(over, replay(over, NOW))
    assert (row.deadline_ms, row.due_ms) == (kept, kept)


def test_an_execution_is_replayed_as_often_as_its_policy_says() -> None:
    over = changed(sample(State.FAILED), policy=encode_policy(Policy(max_replay_count=2)))
    assert replay(changed(over, replay_count=1), NOW).patch["replay_count"] == 2
    with pytest.raises(ReplaysExhausted):
        replay(changed(over, replay_count=2), NOW)


def test_a_replay_still_waits_for_the_upstreams_it_waited_for() -> None:
    over = changed(sample(State.SKIPPED), deps_open=True)
    assert applied(over, replay(over, NOW)).state is State.BLOCKED_DEPENDENCIES


# Priority and tags


def test_a_priority_changes_only_itself() -> None:
    said = change_priority(changed(submitted(), priority=3), NOW + 1, 9)
    assert said.patch == {"priority": 9, "updated_ms": NOW + 1}
    assert said.log is not None
    assert said.log.detail == {"from": 3, "to": 9}


def test_tags_travel_beside_the_patch() -> None:
    said = set_tags(submitted(), NOW, {"demo.b": "2", "demo.a": "1"})
    assert said.tags == {"demo.b": "2", "demo.a": "1"}
    assert said.log is not None
    assert said.log.detail == {"keys": "demo.a,demo.b"}


@pytest.mark.parametrize("state", State)
def test_every_decision_from_outside_is_guarded_by_what_was_read(state: State) -> None:
    row = changed(sample(state), rev=42)
    for decide in VERBS.values():
        try:
            said = decide(row)
        except FlowFabricError:
            continue
        if isinstance(said, Transition):
            assert said.guard == Seen(42, state)
