"""Where claims begin to look, while an old snapshot keeps vacuum from dead index entries.

A claim that walked over many dead entries leaves a floor for the next ones: the key of the best
row that it got. A floor is a hint: it is used for as long as the walk is worth, a claim that finds
nothing above it looks everywhere, and nothing depends on it but the cost of a claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowfabric.core.model import Claim, Lease

# A walk costs about 0.1 ms per thousand entries. A floor that lasts ten times as long keeps walks
# below a tenth of the time, and hides work that comes back with an older key no longer than that.
FEW = 1_000
ENTRIES_PER_MS = 1_000
LONGEST_MS = 60_000


class Floor(NamedTuple):
    """The first key to look at, in the order of claims."""

    priority: int
    created_ms: int
    id: str


NO_FLOOR = Floor(2**63 - 1, 0, "")


class Floors:
    """The floors of one store, by namespace and lane, and until when each is used."""

    def __init__(self) -> None:
        self._floors: dict[tuple[str, str], Floor] = {}
        self._until_ms: dict[tuple[str, str], int] = {}

    def of(self, ask: Claim) -> list[Floor] | None:
        """One for each lane, or None if no lane has one."""
        floors = [self._of((ask.namespace, lane), ask.now_ms) for lane in ask.lanes]
        return None if all(floor is NO_FLOOR for floor in floors) else floors

    def _of(self, place: tuple[str, str], now_ms: int) -> Floor:
        is_used = self._until_ms.get(place, 0) > now_ms
        return self._floors.get(place, NO_FLOOR) if is_used else NO_FLOOR

    def walked(self, ask: Claim, leases: Sequence[Lease], entries: int) -> None:
        """After a claim that looked everywhere, over this many entries for nothing."""
        lasts_ms = min(entries // ENTRIES_PER_MS, LONGEST_MS) if entries >= FEW else 0
        for lane in ask.lanes:
            self._floors.pop((ask.namespace, lane), None)
            self._until_ms[ask.namespace, lane] = ask.now_ms + lasts_ms
        if lasts_ms:
            self.rise(leases)

    def rise(self, leases: Sequence[Lease]) -> None:
        """To the best that each lane gave: what was before it is dead, and soon so is this."""
        for head in (lease.head for lease in reversed(leases)):
            floor = Floor(head.priority, head.created_ms, head.id)
            self._floors[head.namespace, head.lane] = floor
