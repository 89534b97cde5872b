"""What the log tells: which execution is where, who works on it, and what just happened.

Everything here is made from log lines, as a dashboard or a follower would; nothing is remembered
that the store does not have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from flowfabric.core.ids import public_id
from flowfabric.core.model import NO_ATTEMPT, Event
from flowfabric.core.states import TERMINAL, AttemptKind, State


class Happening(NamedTuple):
    """One line for people."""

    at_ms: int
    who: str
    what: str


class Place(NamedTuple):
    """Where an execution is by its last line; worker and attempt are those of its last claim."""

    state: State = State.WAITING
    worker: str = ""
    attempt: int = NO_ATTEMPT
    reason: str = ""


class Board:
    """`labels` names the executions that are watched; lines about others are passed over.

    `members` are those of the flow, by their labels.
    """

    def __init__(self) -> None:
        self.labels: dict[str, str] = {}
        self.members: dict[str, str] = {}
        self.greeters: dict[str, int] = {}
        self.workers: dict[str, int] = {}
        self.killed: set[str] = set()
        self.places: dict[str, Place] = {}

    def watch(self, labels: Mapping[str, str]) -> None:
        self.labels |= labels
        for id in labels:
            self.places.setdefault(id, Place())

    def name(self, worker: str) -> str:
        """Workers are numbered as they were started; the store knows them by longer names."""
        number = self.workers.get(worker)
        return f"worker {number}" if number else worker

    def counts(self) -> Counter[State]:
        return Counter(place.state for place in self.places.values())

    @property
    def is_over(self) -> bool:
        return all(place.state in TERMINAL for place in self.places.values())

    def is_held(self, id: str) -> bool:
        return self.places[id].state is State.ACTIVE

    def held_by(self, worker: str) -> list[str]:
        return [id for id in self.places if self.is_held(id) and self.places[id].worker == worker]

    def absorb(self, line: Event) -> Happening | None:
        """Take in one line; answers what to tell people, if it is worth telling."""
        id = public_id(line.execution)
        label = self.labels.get(id)
        if label is None:
            return None
        before = self.places[id]
        place = self.places[id] = _place(line, before)
        if place.state is State.ACTIVE and id in self.greeters:
            self.workers[place.worker] = self.greeters[id]
        return self._tell(line, label, before)

    def _tell(self, line: Event, label: str, before: Place) -> Happening | None:
        who = self.name(before.worker) if before.state is State.ACTIVE else ""
        detail = line.detail
        match line.kind:
            case "claimed" if detail.get("kind") == AttemptKind.RECLAIM:
                who = self.name(self.places[public_id(line.execution)].worker)
                what = f"takes over {label} as attempt {line.attempt + 1}"
            case "completed" | "failed" | "cancelled" | "expired" | "skipped":
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


def _place(line: Event, before: Place) -> Place:
    claimed = line.detail.get("worker")
    if line.state is State.ACTIVE and isinstance(claimed, str):
        return Place(line.state, claimed, line.attempt)
    # Lines that follow an end, as that of its dispatch, say nothing of why it came.
    known = before.reason if before.state is line.state else ""
    return before._replace(state=line.state, reason=str(line.detail.get("reason") or known))
