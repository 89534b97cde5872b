"""Whether work that can be done is being done: judged from what was seen, without a store."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from flowfabric.core.duration import format_ms
from flowfabric.core.flow.views import View
from flowfabric.core.model import Execution
from flowfabric.core.registry import WorkerRecord, unserved
from flowfabric.core.states import CLAIMABLE, State


def stalled(view: View, now_ms: int, grace_ms: int) -> str:
    """Why a flow does not go on although an outbox entry is due; empty while it changes.

    A dispatcher that takes the flow and fails each time leaves no other trace.
    """
    flow = view.flow
    due = [line.at_ms for line in view.lines if line.next_try_ms <= now_ms]
    if flow is None or flow.parked or not due:
        return ""
    idle_ms = now_ms - max(min(due), flow.updated_ms)
    if idle_ms <= grace_ms:
        return ""
    told = f"flow: {len(due)} outbox entries are due and nothing changed for {format_ms(idle_ms)}"
    if flow.busy_until_ms > now_ms:
        return f"{told}, although a dispatcher holds it; check its log"
    return f"{told}; is an engine running?"


_Place = tuple[str, str, str]


class Unclaimed(NamedTuple):
    namespace: str
    lane: str
    task: str
    sentence: str
    is_unserved: bool = False


class _Queue(NamedTuple):
    oldest_ms: int
    ready: int

    def with_one(self, since_ms: int) -> _Queue:
        return _Queue(min(self.oldest_ms, since_ms), self.ready + 1)


class Queues:
    """The queues of a store, by namespace, lane and task, as its open executions show them."""

    def __init__(self) -> None:
        self._ready: dict[_Place, _Queue] = {}
        self._claimed_ms: dict[_Place, int] = {}

    def see(self, row: Execution) -> None:
        place = row.namespace, row.lane, row.kind
        if row.state in CLAIMABLE:
            known = self._ready.get(place, _Queue(row.updated_ms, 0))
            self._ready[place] = known.with_one(row.updated_ms)
        elif row.state is State.ACTIVE:
            claimed_ms = row.attempt_started_ms or row.updated_ms
            self._claimed_ms[place] = max(self._claimed_ms.get(place, 0), claimed_ms)

    @property
    def namespaces(self) -> set[str]:
        return {namespace for namespace, *_ in self._ready}

    def unclaimed(
        self,
        now_ms: int,
        grace_ms: int,
        serving: Collection[str],
        workers: Mapping[str, Sequence[WorkerRecord]],
    ) -> Iterator[Unclaimed]:
        """Queues of lanes that hand out work, with old work that no live worker serves, or with
        work older than any claim."""
        for place, queue in sorted(self._ready.items()):
            namespace, lane, task = place
            waited_ms = now_ms - queue.oldest_ms
            if lane not in serving or waited_ms <= grace_ms:
                continue
            told = f"{queue.ready} ready of task '{task}', the oldest for {format_ms(waited_ms)}"
            why = unserved(lane, task, workers[namespace])
            if why:
                yield Unclaimed(*place, f"{told}; {why}", is_unserved=True)
            elif self._claimed_ms.get(place, 0) < queue.oldest_ms:
                yield Unclaimed(*place, f"{told}, but none is claimed")
