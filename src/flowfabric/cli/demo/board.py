"""What the log tells: which execution is where, who works on it, and what just happened.

Everything here is made from log lines, as a dashboard or a follower would; nothing is remembered
that the store does not have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import NO_ATTEMPT, Event
from flowfabric.core.states import TERMINAL, AttemptKind, State


class Happening(NamedTuple):
    """One line for people."""

    at_ms: int
    who: str
    what: str


class Holding(NamedTuple):
    """Somebody works on something."""

    worker: str
    attempt: int
    since_ms: int


class Board:
    """`labels` names the executions that are watched; lines about others are passed over."""

    def __init__(self) -> None:
        self.labels: dict[ExecutionId, str] = {}
        self.greeters: dict[ExecutionId, int] = {}
        self.workers: dict[str, int] = {}
        self.killed: set[str] = set()
        self.held: dict[ExecutionId, Holding] = {}
        self._states: dict[ExecutionId, State] = {}

    def watch(self, labels: Mapping[ExecutionId, str]) -> None:
        self.labels |= labels
        for id in labels:
            self._states.setdefault(id, State.WAITING)

    def name(self, worker: str) -> str:
        """Workers are numbered as they were started; the store knows them by longer names."""
        number = self.workers.get(worker)
        return f"worker {number}" if number else worker

    def counts(self) -> Counter[State]:
        return Counter(self._states.values())

    @property
    def is_over(self) -> bool:
        return all(state in TERMINAL for state in self._states.values())

    def held_by(self, worker: str) -> list[ExecutionId]:
        return [id for id, holding in self.held.items() if holding.worker == worker]

    def absorb(self, line: Event) -> Happening | None:
        """Take in one line; answers what to tell people, if it is worth telling."""
        label = self.labels.get(line.execution)
        if label is None:
            return None
        before = self.held.pop(line.execution, None)
        self._states[line.execution] = line.state
        if line.state is State.ACTIVE:
            holding = self.held[line.execution] = _holding(line, before)
            if line.execution in self.greeters:
                self.workers[holding.worker] = self.greeters[line.execution]
        return self._tell(line, label, before)

    def _tell(self, line: Event, label: str, before: Holding | None) -> Happening | None:
        who = self.name(before.worker) if before else ""
        detail = line.detail
        match line.kind:
            case "claimed" if detail.get("kind") == AttemptKind.RECLAIM:
                who = self.name(self.held[line.execution].worker)
                what = f"takes over {label} as attempt {line.attempt + 1}"
            case "completed" | "failed" | "cancelled" | "expired":
                reason = f": {detail['reason']}" if detail.get("reason") else ""
                what = f"{label} {line.kind}{reason}"
            case "retry_scheduled":
                what = f"{label} will be retried: {detail.get('reason')}"
            case "lease_expired":
                what = f"the lease of {label} ran out"
            case "promoted" if line.attempt == NO_ATTEMPT:
                what = f"{label} is due"
            case _:
                return None
        return Happening(line.at_ms, who, what)


def _holding(line: Event, before: Holding | None) -> Holding:
    worker = line.detail.get("worker")
    if isinstance(worker, str):
        return Holding(worker, line.attempt, line.at_ms)
    return before or Holding("", line.attempt, line.at_ms)
