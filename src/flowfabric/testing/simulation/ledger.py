"""What the inhabitants of the simulation were told, and what the store was seen to do.

It remembers; the judges compare. Nothing of it is read by the code that is simulated.
"""

from __future__ import annotations

from collections import Counter

from flowfabric.core.flow.graph import Plan
from flowfabric.core.ids import ExecutionId, FlowId


class Broken(AssertionError):
    """Something happened that must never happen."""


class Ledger:
    """Acknowledged submits, completions and leases as the store wrote them, and what went; `begun`
    are submits that nobody has had an answer to."""

    def __init__(self) -> None:
        self.executions: dict[ExecutionId, None] = {}
        self.flows: dict[FlowId, list[ExecutionId]] = {}
        self.begun: dict[FlowId, Plan] = {}
        self.gone: set[str] = set()
        self.counts: Counter[str] = Counter()
        self._completions: dict[ExecutionId, dict[int, int]] = {}
        self._leases: dict[ExecutionId, dict[int, str]] = {}

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

    def leased(self, id: ExecutionId, epoch: int, token: str) -> None:
        """Somebody holds it now: under an epoch that nobody before had."""
        mine = self._leases.setdefault(id, {})
        if max(mine, default=-1) >= epoch:
            raise Broken(f"{id}: leased in epoch {epoch}, after {sorted(mine)}")
        mine[epoch] = token
        self.counts["leased"] += 1

    def submitted(self, id: ExecutionId) -> None:
        self.executions[id] = None
        self.counts["submitted"] += 1

    def removed(self, id: ExecutionId) -> None:
        """It is gone, rightly: whoever makes it again makes a new one."""
        self.gone.add(id)
        self.counts["purged"] += 1
        self._completions.pop(id, None)
        self._leases.pop(id, None)
