"""What the inhabitants of the simulation were told, and what the store was seen to do.

It remembers; the judges compare. Nothing of it is read by the code that is simulated.
"""

from __future__ import annotations

from collections import Counter

from flowfabric.core.flow.graph import Plan
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import Execution
from flowfabric.core.states import TERMINAL, State
from flowfabric.testing.simulation.programs import Program

# So long at most work rests after a worker could not read it.
UNREAD_MS_MAX = 60_001


class Broken(AssertionError):
    """Something happened that must never happen."""


class Ledger:
    """Acknowledged submits, completions and leases as the store wrote them, and what went; `begun`
    are submits that nobody has had an answer to, `programs` what each worker was started with."""

    def __init__(self) -> None:
        self.executions: dict[ExecutionId, None] = {}
        self.flows: dict[FlowId, list[ExecutionId]] = {}
        self.begun: dict[FlowId, Plan] = {}
        self.programs: dict[str, Program] = {}
        self.gone: set[str] = set()
        self.counts: Counter[str] = Counter()
        self._completions: dict[ExecutionId, dict[int, int]] = {}
        self._leases: dict[ExecutionId, set[int]] = {}

    def completed(self, id: ExecutionId, generation: int, attempt: int) -> None:
        """The store wrote a success: the only one of this generation."""
        mine = self._completions.setdefault(id, {})
        if generation in mine:
            raise Broken(f"{id}: attempts {mine[generation]} and {attempt} both completed it")
        mine[generation] = attempt
        self.counts["completed"] += 1

    def confirmed(self, id: ExecutionId, generation: int, attempt: int) -> None:
        """A worker was told that its success counts."""
        self.counts["confirmed"] += 1
        if id not in self.gone and self._completions.get(id, {}).get(generation) != attempt:
            raise Broken(f"{id}: attempt {attempt} was told of a success that was not stored")

    def leased(self, row: Execution) -> None:
        """A worker that knows the task holds it now, under an epoch that it never had before."""
        mine = self._leases.setdefault(row.id, set())
        if max(mine, default=-1) >= row.epoch:
            raise Broken(f"{row.id}: leased in epoch {row.epoch}, after {sorted(mine)}")
        if not self.programs[row.worker].knows(row.kind):
            raise Broken(f"{row.id}: leased to {row.worker}, which does not know '{row.kind}'")
        mine.add(row.epoch)
        self.counts["leased"] += 1

    def handed_back(self, before: Execution, row: Execution, payload: bytes) -> None:
        """A worker let go of it: one that could not read it has not used anything up, and has
        not ended it, unless it was cancelled meanwhile."""
        if self.programs[before.worker].reads(payload):
            return
        is_cancelled = row.state is State.CANCELLED
        used = (before.attempt, before.retry_count, before.reclaim_count)
        left = (row.next_attempt, row.retry_count, row.reclaim_count)
        if not is_cancelled and (row.state in TERMINAL or used != left):
            told = f"is {row.state}, {left} after {used}"
            raise Broken(f"{row.id}: {before.worker} could not read it, and it {told}")
        if (row.not_before_ms or 0) - row.updated_ms > UNREAD_MS_MAX:
            raise Broken(f"{row.id}: could not be read, and rests until {row.not_before_ms}")
        self.counts["handed back unread"] += 1

    def submitted(self, id: ExecutionId) -> None:
        self.executions[id] = None
        self.counts["submitted"] += 1

    def removed(self, id: ExecutionId) -> None:
        """It is gone, rightly: whoever makes it again makes a new one."""
        self.gone.add(id)
        self.counts["purged"] += 1
        self._completions.pop(id, None)
        self._leases.pop(id, None)
