"""What random histories are made of: strategies for orders, asks, leases and times.

Numbers are few and chosen to meet: a lease, an attempt and a deadline that end in the same
millisecond, a pause of nothing, a cap of nothing. Needs Hypothesis.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from flowfabric.core.entries import Entry
from flowfabric.core.lifecycle import Failure, Order
from flowfabric.core.policy import (
    Exponential,
    Fixed,
    OnAttemptTimeout,
    Policy,
    RetryPolicy,
    TimeoutPolicy,
    encode_policy,
)
from flowfabric.core.states import LaneState, Reason
from flowfabric.testing.build import KIND, TASKS, order
from flowfabric.testing.claiming import Ask
from flowfabric.testing.documents import DocumentWish
from flowfabric.testing.driver import NAMESPACES
from flowfabric.testing.picking import LANES, TTLS_MS, Pick
from flowfabric.testing.picture import DOCUMENT_KINDS, DOCUMENT_WORDS, TOPICS

CATEGORIES = ("handler_error", "timeout", "odd")
SPANS_MS = (0, 1, 1_000, 5_000, 30_000)
BLOCKS = (
    Reason.PAUSED_BY_OPERATOR,
    Reason.WAITING_FOR_BUDGET,
    Reason.WAITING_FOR_QUOTA,
    Reason.WAITING_FOR_CAPABLE_WORKER,
    Reason.PAUSED_BY_POLICY,
    Reason.WAITING_FOR_SIGNAL,
)


class Wish(NamedTuple):
    """An order before its moment and its number are known."""

    lane: str
    who: int
    priority: int
    policy: str
    delay_ms: int | None
    deadline_ms: int | None
    key: str | None
    digest: str
    task: str = KIND

    def order(self, number: int, now_ms: int) -> Order:
        return order(
            number,
            namespace=NAMESPACES[self.who],
            lane=self.lane,
            kind=self.task,
            payload=b"input %d" % number,
            priority=self.priority,
            policy=self.policy,
            tags={"a.lane": self.lane},
            delay_until_ms=None if self.delay_ms is None else now_ms + self.delay_ms,
            deadline_ms=None if self.deadline_ms is None else now_ms + self.deadline_ms,
            key=self.key,
            digest=self.digest,
        )


def _seldom(*values: int) -> st.SearchStrategy[int | None]:
    return st.sampled_from((*[None] * 2 * len(values), *values))


def _often(*values: int) -> st.SearchStrategy[int | None]:
    return st.sampled_from((*[None] * len(values), *values))


def _retries() -> st.SearchStrategy[RetryPolicy]:
    pauses = st.one_of(
        st.builds(Fixed, st.sampled_from(SPANS_MS)),
        st.builds(Exponential, st.just(1_000), st.just(5_000), jitter=st.booleans()),
    )
    named = st.sampled_from([(), (), ("odd",), ("timeout", "handler_error")])
    return st.builds(RetryPolicy, st.integers(0, 2), pauses, named)


def _timeouts() -> st.SearchStrategy[TimeoutPolicy]:
    return st.builds(
        TimeoutPolicy,
        attempt_timeout_ms=_often(1, 1_000, 5_000, 30_000),
        on_attempt_timeout=st.sampled_from(OnAttemptTimeout),
        execution_deadline_ms=_seldom(1, 5_000, 60_000),
        max_reclaim_count=st.sampled_from((100, 1, 0)),
    )


def _policies() -> st.SearchStrategy[str]:
    some = st.builds(
        Policy,
        retry_policy=st.one_of(st.none(), _retries(), _retries()),
        timeout_policy=_timeouts(),
        max_replay_count=st.sampled_from((10, 1, 0)),
        dedup_window_ms=st.sampled_from((86_400_000, 5_000, 1)),
    )
    return st.one_of(st.just(""), some.map(encode_policy), some.map(encode_policy))


# Lives through most of what can happen to it.
PLAIN = Wish(
    lane=LANES[0],
    who=0,
    priority=0,
    policy=encode_policy(
        Policy(RetryPolicy(2, Fixed(1_000)), TimeoutPolicy(30_000, OnAttemptTimeout.RETRY))
    ),
    delay_ms=None,
    deadline_ms=None,
    key=None,
    digest="",
)

numbers = st.integers(0, 7)
spans_ms = st.sampled_from(SPANS_MS)
results = st.binary(max_size=3)
priorities = st.sampled_from((0, 5, 9_000))
lanes = st.sampled_from(LANES)
lane_states = st.sampled_from((LaneState.ACTIVE, LaneState.ACTIVE, LaneState.PAUSED, *LaneState))
blocks = st.sampled_from(BLOCKS)
blocked_by = st.sampled_from((*[None] * 2 * len(BLOCKS), *BLOCKS))
jumps_ms = st.sampled_from((1, 2, 499, 500, 999, 1_000, 4_999, 5_000, 60_000, 86_400_000))
# On the moment, just before it, just after it.
misses_ms = st.sampled_from((0, -1, 1))
tags = st.dictionaries(st.sampled_from(("a.lane", "b.owner")), st.sampled_from(("main", "x")))
failures = st.builds(
    Failure, st.just("broke"), st.sampled_from(CATEGORIES), st.sampled_from((False, False, True))
)
picks = st.builds(
    Pick,
    st.sampled_from(("live", "live", "live", "over", "kept", "foreign")),
    numbers,
    st.integers(0, 3),
)
ttls_ms = st.sampled_from(TTLS_MS)
document_wishes = st.builds(
    DocumentWish,
    kind=st.sampled_from(DOCUMENT_KINDS),
    name=st.sampled_from(("a", "b", "é")),
    how=st.sampled_from(("create", "change", "change", "change", "remove", "stale")),
    due_in_ms=st.sampled_from((None, None, -1, 0, 1, 5_000)),
    words=st.sets(st.sampled_from(DOCUMENT_WORDS)).map(tuple),
    body=st.binary(max_size=3),
)
# Few keys, so that many are there already; some that compare as texts in another way than as bytes.
entries = st.lists(
    st.builds(
        Entry,
        st.sampled_from(TOPICS),
        st.sampled_from(("a", "aa", "B", "b", "10", "9", "\u00e9", "\U0001f600", "\uffee")),
        st.binary(max_size=3),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda entry: (entry.topic, entry.key),
)
asks = st.builds(
    Ask,
    tasks=st.sampled_from((TASKS, TASKS, TASKS[::-1], TASKS[:1], TASKS[1:])),
    lanes=st.sampled_from((LANES, LANES, LANES[::-1], LANES[:1], LANES[1:])),
    limit=st.sampled_from((1, 2, 10)),
    who=st.sampled_from((0, 0, 0, 1)),
    ttl_ms=ttls_ms,
    start=st.sampled_from((True, True, False)),
    only=_seldom(0, 1, 2, 6),
    again=_seldom(0, 1, 2, 3),
)
wishes = st.builds(
    Wish,
    task=st.sampled_from(TASKS),
    lane=lanes,
    who=st.sampled_from((0, 0, 0, 1)),
    priority=priorities,
    policy=_policies(),
    delay_ms=_seldom(*SPANS_MS),
    deadline_ms=_seldom(0, 1, 5_000, 60_000),
    key=st.sampled_from((None, None, "key-a", "key-b")),
    digest=st.sampled_from(("one", "one", "two")),
)
