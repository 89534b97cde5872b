"""When a flow is settled: every member has ended and is counted. Then its last summary is known,
and when it may go. A member that joins, or is brought back to life, unsettles it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from flowfabric.core.flow.model import Flow
from flowfabric.core.flow.outcome import FlowOutcome
from flowfabric.core.flow.summary import encode_summary, summarize
from flowfabric.core.model import Value
from flowfabric.core.policy import DEFAULT, RetentionPolicy
from flowfabric.core.states import Outcome
from flowfabric.errors import InvalidInput

# Which counter of a flow, and which stored state of a member, an outcome is.
COUNTERS: dict[Outcome, str] = {
    Outcome.SUCCESS: "completed",
    Outcome.FAILED: "failed",
    Outcome.CANCELLED: "cancelled",
    Outcome.EXPIRED: "expired",
    Outcome.SKIPPED: "skipped",
}

BAD = (Outcome.FAILED, Outcome.CANCELLED, Outcome.EXPIRED)

_retention = msgspec.json.Decoder(RetentionPolicy)


def settled(
    flow: Flow,
    ends: Mapping[Outcome, int],
    total: int,
    now_ms: int,
    *,
    outcome: FlowOutcome = FlowOutcome.PENDING,
) -> dict[str, Value]:
    """The columns to write when so many of `total` members have ended in each way. Without bad
    ends the outcome is a success; else it is the one that was judged, or to be judged later."""
    if not any(ends.get(each) for each in BAD):
        outcome = FlowOutcome.SUCCESS
    if sum(ends.values()) == total:
        tally = {COUNTERS[outcome]: count for outcome, count in ends.items() if count}
        return {
            "settled": True,
            "summary": encode_summary(summarize(tally, now_ms), outcome),
            "purge_ms": purge_ms_of(flow, ends, now_ms),
        }
    return {"settled": False, "purge_ms": None} if flow.settled else {}


def purge_ms_of(flow: Flow, ends: Mapping[Outcome, int], now_ms: int) -> int:
    """As late as any of the members asks for."""
    retention = retention_of_flow(flow.retention)
    kept = [retention.kept_ms(outcome) for outcome, count in ends.items() if count]
    return max(now_ms + max(kept, default=retention.cancelled_ms), flow.keep_until_ms)


def encode_retention(retention: RetentionPolicy) -> str:
    """The stored form; empty for one that says nothing."""
    if retention == DEFAULT.retention_policy:
        return ""
    try:
        text = msgspec.json.encode(retention)
        _retention.decode(text)
    except (msgspec.DecodeError, TypeError) as error:
        raise InvalidInput(
            str(error), field="retention", hint="use whole milliseconds for each outcome"
        ) from error
    return text.decode()


def retention_of_flow(text: str) -> RetentionPolicy:
    """One that cannot be read must not keep a flow from being finished."""
    try:
        return _retention.decode(text) if text else DEFAULT.retention_policy
    except msgspec.DecodeError:
        return DEFAULT.retention_policy
