"""The table of joins, walked whole, and the words of the catalogue about it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import msgspec
import pytest

from flowfabric.core.flow.join import is_understood, judge
from flowfabric.core.flow.model import Group, GroupState, Join, OnSatisfied
from flowfabric.core.flow.siblings import cancels_rest
from flowfabric.testing.flows import FLOW, member

SATISFIED, IMPOSSIBLE, PENDING = GroupState.SATISFIED, GroupState.IMPOSSIBLE, GroupState.PENDING


def group(
    join: str = Join.ALL_OF,
    n: int = 3,
    counts: tuple[int, int, int] = (0, 0, 0),
    *,
    k: int = 1,
    on_satisfied: str = OnSatisfied.CANCEL_REMAINING,
) -> Group:
    succeeded, failed, skipped = counts
    return Group(
        flow=FLOW,
        downstream=member("x"),
        join=join,
        k=k,
        n=n,
        succeeded=succeeded,
        failed=failed,
        skipped=skipped,
        on_satisfied=on_satisfied,
    )


def cells() -> Iterator[tuple[int, tuple[int, int, int]]]:
    for n, succeeded, failed, skipped in product(range(7), repeat=4):
        if succeeded + failed + skipped <= n:
            yield n, (succeeded, failed, skipped)


def counted(n: int, counts: tuple[int, int, int], need: int) -> GroupState:
    """The table in other words: ask whether it has happened, then whether it still can."""
    if n == 0:
        return PENDING
    if counts[0] >= need:
        return SATISFIED
    still = n - sum(counts)
    return PENDING if counts[0] + still >= need else IMPOSSIBLE


@pytest.mark.parametrize(("n", "counts"), list(cells()))
def test_every_cell_of_the_table_up_to_six_edges(n: int, counts: tuple[int, int, int]) -> None:
    assert judge(group(Join.ALL_OF, n, counts)) is counted(n, counts, n)
    assert judge(group(Join.ANY_OF, n, counts)) is counted(n, counts, 1)
    for k in range(1, 8):
        assert judge(group(Join.QUORUM, n, counts, k=k)) is counted(n, counts, k)


@pytest.mark.case("FL-035")
def test_all_of_three() -> None:
    assert judge(group(counts=(3, 0, 0))) is SATISFIED
    assert judge(group(counts=(2, 1, 0))) is IMPOSSIBLE
    assert judge(group(counts=(1, 0, 0))) is PENDING
    done = msgspec.structs.replace(group(counts=(3, 0, 0)), state=SATISFIED)
    assert not cancels_rest(done)


@pytest.mark.case("FL-036")
def test_all_of_nothing_is_never_satisfied_and_a_skip_is_no_success() -> None:
    assert judge(group(n=0)) is PENDING
    assert judge(group(counts=(2, 0, 1))) is judge(group(counts=(2, 1, 0))) is IMPOSSIBLE


@pytest.mark.case("FL-047")
def test_choices() -> None:
    let_run, cancel = OnSatisfied.LET_RUN, OnSatisfied.CANCEL_REMAINING
    rows = [
        (group(Join.ANY_OF, 3, (1, 0, 0), on_satisfied=cancel), SATISFIED, True),
        (group(Join.ANY_OF, 3, (1, 0, 0), on_satisfied=let_run), SATISFIED, False),
        (group(Join.ANY_OF, 3, (0, 3, 0), on_satisfied=let_run), IMPOSSIBLE, False),
        (group(Join.QUORUM, 3, (2, 0, 1), k=2, on_satisfied=let_run), SATISFIED, False),
        (group(Join.QUORUM, 5, (0, 3, 0), k=3, on_satisfied=let_run), IMPOSSIBLE, False),
    ]
    for judged, state, cancels in rows:
        assert judge(judged) is state
        assert cancels_rest(msgspec.structs.replace(judged, state=state)) is cancels


def test_s2_26_satisfied_is_asked_before_impossible() -> None:
    # More edges ended than there are: both columns of the table would hold.
    assert judge(group(Join.QUORUM, 3, (2, 3, 0), k=2)) is SATISFIED


@pytest.mark.parametrize("state", [SATISFIED, IMPOSSIBLE, GroupState.CANCELLED])
@pytest.mark.parametrize("counts", [(3, 0, 0), (0, 3, 0), (0, 0, 0)])
def test_a_group_is_decided_once(state: GroupState, counts: tuple[int, int, int]) -> None:
    assert judge(msgspec.structs.replace(group(counts=counts), state=state)) is state


@pytest.mark.parametrize("counts", [(3, 0, 0), (0, 3, 0)])
def test_a_group_is_judged_only_when_it_is_sealed(counts: tuple[int, int, int]) -> None:
    assert judge(msgspec.structs.replace(group(counts=counts), sealed=False)) is PENDING


@pytest.mark.parametrize("counts", [(3, 0, 0), (0, 3, 0), (1, 1, 1)])
def test_s2_28_a_policy_that_nobody_here_knows_stays_pending(counts: tuple[int, int, int]) -> None:
    strange = group("weighted", 3, counts)
    assert judge(strange) is PENDING
    assert not is_understood(strange)
    assert not is_understood(group(Join.QUORUM, k=0))
    assert is_understood(group())


@pytest.mark.case("FL-049")
def test_running_is_what_is_left_and_never_below_nothing() -> None:
    assert group(n=3, counts=(1, 1, 0)).running == 1
    assert group(n=3, counts=(3, 1, 0)).running == 0
    some = group(n=6, counts=(1, 2, 1))
    assert some.succeeded + some.failed + some.skipped + some.running == some.n


@pytest.mark.case("FL-051")
def test_words_go_round() -> None:
    assert [str(word) for word in Join] == ["all_of", "any_of", "quorum"]
    assert [str(word) for word in OnSatisfied] == ["cancel_remaining", "let_run"]
    assert {str(word) for word in GroupState} == {
        "pending",
        "satisfied",
        "impossible",
        "cancelled",
    }
    for words in (Join, OnSatisfied, GroupState):
        assert all(words(str(word)) is word for word in words)
