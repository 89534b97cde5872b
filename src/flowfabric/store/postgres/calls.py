"""What every statement of one call of a verb carries: times, the notice for others, the texts."""

from __future__ import annotations

from typing import NamedTuple

from flowfabric.errors import ClockSkew, StoreMismatch
from flowfabric.store.clock import SKEW_LIMIT_MS, FollowingClock, arriving_ms
from flowfabric.store.postgres.driver import Record
from flowfabric.store.postgres.flow_statements import FlowStatements
from flowfabric.store.postgres.statements import Arguments


class Sent:
    """The times of a call. `clock_ms` replaces the server's clock in tests; the caller's is looked
    at for each statement, when there is a connection to send it over."""

    __slots__ = ("_caller", "caller_ms", "clock_ms", "now_ms")

    def __init__(self, now_ms: int, clock_ms: int | None, caller: FollowingClock | None) -> None:
        self.now_ms = now_ms
        self.clock_ms = clock_ms
        self.caller_ms = now_ms
        self._caller = caller

    def look(self) -> int:
        self.caller_ms = arriving_ms(self._caller, self.now_ms)
        return self.caller_ms


class Call(NamedTuple):
    """`notice` is empty if there is nothing to tell, or nobody to tell it to."""

    sql: FlowStatements
    sent: Sent
    channel: str
    notice: str

    @property
    def now_ms(self) -> int:
        return self.sent.now_ms

    @property
    def arguments(self) -> Arguments:
        return {
            "now_ms": self.sent.now_ms,
            "caller_ms": self.sent.look(),
            "clock_ms": self.sent.clock_ms,
            "channel": self.channel,
            "notice": self.notice,
        }

    @property
    def reserve(self) -> str:
        """The first thing in a transaction of several statements: see how the log is read."""
        return self.sql.named("log_reserve").text


def answered(records: list[Record], call: Call) -> list[Record]:
    """The answer of a writing statement, or why it has written nothing."""
    if not records[0]["fits"]:
        store_now_ms: int = records[0]["now_ms"]
        if abs(store_now_ms - call.sent.caller_ms) <= SKEW_LIMIT_MS:
            raise newer_schema(call.sql.schema)
        raise ClockSkew.between(store_now_ms, call.sent.caller_ms)
    return records


def newer_schema(schema: str) -> StoreMismatch:
    return StoreMismatch(
        f"schema {schema} has a newer version than this FlowFabric supports",
        hint="upgrade FlowFabric on this machine",
    )
