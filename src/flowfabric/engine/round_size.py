"""How many lines a round of dispatch is about: fewer after one that took too long.

A round that is too big is not refused by anybody, but its decision is old when it is written, and
others take over the flows that it holds. So the next is half as big, down to a single line, and
bigger again when there is time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowfabric.core.flow.views import LINES_LIMIT
from flowfabric.engine.rounds import AGE_LIMIT_MS, Job, weight

FLOWS = 200
WHOLE = FLOWS * LINES_LIMIT


class RoundSize:
    def __init__(self) -> None:
        self.lines = WHOLE

    def cut(self, jobs: Sequence[Job]) -> Iterator[list[Job]]:
        """These jobs in portions that fit, each as the size is when its turn comes. Lines that a
        flow has too many of are left for its next round."""
        some: list[Job] = []
        room = self.lines
        for job in jobs:
            if some and weight([job]) > room:
                yield some
                some, room = [], self.lines
            if len(job.lines) > self.lines:
                job.lines, job.is_all = job.lines[: self.lines], False
            some.append(job)
            room -= weight([job])
        if some:
            yield some

    def shrink(self, jobs: Sequence[Job]) -> None:
        """A round of these took too long."""
        self.lines = max(weight(jobs) // 2, 1)

    def grow(self, took_ms: int) -> None:
        """A round was done in so much time: twice as much must fit, too."""
        if self.lines < WHOLE and 4 * took_ms < AGE_LIMIT_MS:
            self.lines = min(2 * self.lines, WHOLE)
