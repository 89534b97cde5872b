"""What the end of an upstream means for an edge, by the kind of the edge.

Only the outcome `success` satisfies an edge of the usual kind; every other one makes it
impossible. Counters follow the edge: satisfied is counted as succeeded, impossible as skipped if
nothing went wrong upstream, else as failed.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import assert_never

from flowfabric.core.flow.model import NEVER_RAN, NOT_PINNED, Edge, EdgeKind, EdgeState
from flowfabric.core.model import NO_ATTEMPT, Execution
from flowfabric.core.states import TERMINAL, Outcome


class Bucket(StrEnum):
    """Which counter of the group an edge moves."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"


_OUTCOMES = {outcome.value: outcome for outcome in Outcome}
_FAILED = Outcome.FAILED


def is_answered(edge: Edge, upstream: Execution) -> bool:
    """Whether the end that this edge waits for has happened. One that a replay has opened again
    waits for a later generation of its upstream than the one that had its say."""
    return upstream.state in TERMINAL and edge.generation <= upstream.replay_count


_WENT_WRONG = frozenset({Outcome.FAILED, Outcome.CANCELLED, Outcome.EXPIRED})


@cache
def verdict(kind: EdgeKind, outcome: Outcome) -> EdgeState:
    if _satisfies(kind, outcome):
        return EdgeState.SATISFIED
    return EdgeState.IMPOSSIBLE


def _satisfies(kind: EdgeKind, outcome: Outcome) -> bool:
    match kind:
        case EdgeKind.SUCCESS_ONLY:
            return outcome is Outcome.SUCCESS
        case EdgeKind.FAILURE:
            return outcome in _WENT_WRONG
        case EdgeKind.COMPLETION | EdgeKind.ORDER:
            return outcome is not Outcome.NONE
        case _:
            assert_never(kind)


def wants_success(edge: Edge) -> bool:
    """Whether the downstream has something from a success of the upstream that no other end gives:
    then the upstream is not superfluous as long as this edge is pending."""
    match edge.kind:
        case EdgeKind.SUCCESS_ONLY:
            return True
        case EdgeKind.COMPLETION:
            return bool(edge.argument)
        case EdgeKind.FAILURE | EdgeKind.ORDER:
            return False
        case _:
            assert_never(edge.kind)


@cache
def bucket(state: EdgeState, outcome: Outcome) -> Bucket:
    """The counter that a resolved edge belongs to."""
    if state is EdgeState.SATISFIED:
        return Bucket.SUCCEEDED
    return Bucket.FAILED if outcome in _WENT_WRONG else Bucket.SKIPPED


def pin(upstream: Execution | None) -> int:
    """What an edge that is needed remembers of its upstream."""
    if upstream is None:
        return NOT_PINNED
    return NEVER_RAN if upstream.attempt == NO_ATTEMPT else upstream.attempt


def outcome_of(text: str) -> Outcome:
    """What a line says about an end; a word that is not known here counts as a failure."""
    return _OUTCOMES.get(text, _FAILED)
