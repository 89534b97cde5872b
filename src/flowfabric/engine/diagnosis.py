"""What the doctor finds: the words of a diagnosis. Nothing here looks at a store."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Kind(StrEnum):
    STUCK = "stuck"  # nothing will ever wake it
    PARKED = "parked"  # failed too often; an operator must look
    FAILING = "failing"  # failed, and is tried again later
    UNREADABLE = "unreadable"
    LATE = "late"  # somebody should have served it by now
    STALLED = "stalled"  # there is work that can be done, and nothing has changed for a while
    UNEXAMINED = "unexamined"  # a part of the examination failed
    SLOWED = "slowed"  # a warning: all goes on, but slower the longer this lasts


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong, in one sentence."""

    kind: Kind
    subject: str
    sentence: str


class DutyState(msgspec.Struct, frozen=True):
    """When a duty last ran, by whatever engine, and how long it is overdue."""

    name: str
    last_ms: int
    duration_ms: int
    processed: int
    errors: int
    lag_ms: int


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at, and what was found; warnings leave a store well."""

    executions: int
    flows: int
    timers_lag_ms: int
    dispatch_lag_ms: int
    duties: list[DutyState]
    findings: list[Finding]

    @property
    def warnings(self) -> int:
        return sum(each.kind is Kind.SLOWED for each in self.findings)

    @property
    def problems(self) -> int:
        return len(self.findings) - self.warnings

    @property
    def is_well(self) -> bool:
        return not self.problems
