"""The timers of the memory store: a list that forgets lazily."""

from __future__ import annotations

from collections.abc import Mapping

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution

Timer = tuple[int, ExecutionId]


class TimerBook:
    """Whatever was ever armed; a timer counts while its row still names it."""

    def __init__(self) -> None:
        self._timers: set[Timer] = set()

    def arm(self, row: Execution) -> None:
        if row.due_ms is not None:
            self._timers.add((row.due_ms, row.id))

    def look(
        self, now_ms: int, rows: Mapping[ExecutionId, Execution]
    ) -> tuple[list[ExecutionId], int | None]:
        """Whose timers have passed, soonest first, and when the next one will."""
        ordered = sorted(timer for timer in self._timers if self._is_armed(timer, rows))
        self._timers = set(ordered)
        later = (at_ms for at_ms, _ in ordered if at_ms > now_ms)
        return [id for at_ms, id in ordered if at_ms <= now_ms], next(later, None)

    def _is_armed(self, timer: Timer, rows: Mapping[ExecutionId, Execution]) -> bool:
        row = rows.get(timer[1])
        return row is not None and row.due_ms == timer[0]
