"""Where looks begin, while an old snapshot keeps vacuum from dead index entries.

A look that walked over many dead entries leaves a floor for the next ones: for claims the key of
the best row that it got, for timers and lines a time. A floor is a hint: it is used for as long as
the walk is worth, then the next look looks everywhere, and so does a claim that finds nothing above
it. Nothing depends on a floor but the cost of a look.
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
# Times are written by clocks that differ a little, and a while before they can be seen.
ON_ITS_WAY_MS = 1_000


def lasts_ms(entries: int) -> int:
    """How long a walk over this many entries for nothing is worth."""
    return min(entries // ENTRIES_PER_MS, LONGEST_MS) if entries >= FEW else 0


class Floor(NamedTuple):
    """The first key to look at, in the order of claims."""

    priority: int
    created_ms: int
    id: str


NO_FLOOR = Floor(2**63 - 1, 0, "")


class Floors:
    """The floors of one store, by namespace and route, and until when each is used."""

    def __init__(self) -> None:
        self._floors: dict[tuple[str, str], Floor] = {}
        self._until_ms: dict[tuple[str, str], int] = {}

    def of(self, ask: Claim) -> list[Floor] | None:
        """One for each route, or None if no route has one."""
        floors = [self._of((ask.namespace, route), ask.now_ms) for route in ask.routes]
        return None if all(floor is NO_FLOOR for floor in floors) else floors

    def _of(self, place: tuple[str, str], now_ms: int) -> Floor:
        is_used = self._until_ms.get(place, 0) > now_ms
        return self._floors.get(place, NO_FLOOR) if is_used else NO_FLOOR

    def walked(self, ask: Claim, leases: Sequence[Lease], entries: int) -> None:
        """After a claim that looked everywhere, over this many entries for nothing."""
        worth_ms = lasts_ms(entries)
        for route in ask.routes:
            self._floors.pop((ask.namespace, route), None)
            self._until_ms[ask.namespace, route] = ask.now_ms + worth_ms
        if worth_ms:
            self.rise(leases)

    def rise(self, leases: Sequence[Lease]) -> None:
        """To the best that each route gave: what was before it is dead, and soon so is this."""
        for head in (lease.head for lease in reversed(leases)):
            floor = Floor(head.priority, head.created_ms, head.id)
            self._floors[head.namespace, head.route] = floor


class TimeFloor:
    """The time from which one kind of look begins, and from when until when that is so."""

    def __init__(self) -> None:
        self._at_ms = 0
        self._from_ms = 0
        self.until_ms = 0

    def of(self, now_ms: int) -> int | None:
        return self._at_ms if self._from_ms <= now_ms < self.until_ms else None

    def walked(self, at_ms: int, now_ms: int, entries: int) -> None:
        """After a look everywhere, over this many entries for nothing: `at_ms` is what is next."""
        self._at_ms, self._from_ms = at_ms, now_ms
        self.until_ms = now_ms + lasts_ms(entries)

    def rise(self, at_ms: int) -> None:
        self._at_ms = max(self._at_ms, at_ms)

    def lower(self, at_ms: int) -> None:
        """Somebody wrote something that would lie below it."""
        self._at_ms = min(self._at_ms, at_ms)
