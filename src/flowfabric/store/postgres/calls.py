"""What every statement of one call of a verb carries: times, the notice for others, the texts."""

from __future__ import annotations

from typing import NamedTuple

from flowfabric.errors import ClockSkew, StoreMismatch
from flowfabric.store.clock import SKEW_LIMIT_MS
from flowfabric.store.postgres.driver import Record
from flowfabric.store.postgres.flow_statements import FlowStatements
from flowfabric.store.postgres.statements import Arguments


class Call(NamedTuple):
    """`clock_ms` replaces the server's clock in tests; `notice` is empty if there is nothing to
    tell, or nobody to tell it to."""

    sql: FlowStatements
    now_ms: int
    clock_ms: int | None
    channel: str
    notice: str

    @property
    def arguments(self) -> Arguments:
        return {
            "now_ms": self.now_ms,
            "caller_ms": self.now_ms,
            "clock_ms": self.clock_ms,
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
        if abs(store_now_ms - call.now_ms) <= SKEW_LIMIT_MS:
            raise newer_schema(call.sql.schema)
        raise ClockSkew.between(store_now_ms, call.now_ms)
    return records


def newer_schema(schema: str) -> StoreMismatch:
    return StoreMismatch(
        f"schema {schema} has a newer version than this FlowFabric knows",
        hint="upgrade FlowFabric on this machine",
    )
