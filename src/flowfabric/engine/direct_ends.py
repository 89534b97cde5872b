"""Ends of members together with what follows from them, in one commit.

Only for flows that this process knows: the end of a member, the edges that it resolves and the
members that it releases are decided from memory and written under the flow's `rev`, so no line is
left for a dispatcher. Who ends a member can go on with one that it releases: that one is claimed
with it. If anything is not as it was thought, nothing is written, and the end goes the usual road:
an `apply` that leaves a line.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from flowfabric.core.flow.model import Line
from flowfabric.core.model import Claim, Lease
from flowfabric.core.transition import BATCH_LIMIT, Transition, end_of, patched
from flowfabric.engine.isolation import log_failed
from flowfabric.engine.known_flows import KnownFlows, is_for_dispatchers
from flowfabric.engine.learning import Learning
from flowfabric.engine.outcomes import (
    Finished,
    Outcome,
    decide_or_refuse,
    ends_of,
    finished_as,
)
from flowfabric.engine.rounds import Job, Rounds
from flowfabric.errors import FlowFabricError
from flowfabric.loggers import logger_of
from flowfabric.store.clock import FollowingClock
from flowfabric.store.hints import Hint, Hints

logger = logger_of("flowfabric.engine")

Usual = Callable[[Sequence[Outcome]], Awaitable[list[Finished]]]


class Followed(NamedTuple):
    """What became of outcomes, and what their holder goes on with.

    `is_unanswered`: more may be held for it, under the token that it asked with.
    """

    answers: list[Finished]
    leases: list[Lease]
    is_unanswered: bool = False


class _End(msgspec.Struct, frozen=True, gc=False):
    place: int
    outcome: Outcome
    transition: Transition
    line: Line


class _Written(NamedTuple):
    """By place those that were written; the others are for the usual road."""

    answers: dict[int, Finished]
    leases: list[Lease]
    is_unanswered: bool = False


class DirectEnds:
    def __init__(
        self,
        known: KnownFlows,
        learning: Learning,
        rounds: Rounds,
        *,
        clock: FollowingClock,
        hints: Hints,
    ) -> None:
        self._known = known
        self._learning = learning
        self._rounds = rounds
        self._clock = clock
        self._hints = hints

    async def finish(
        self, outcomes: Sequence[Outcome], usual: Usual, claim: Claim | None = None
    ) -> Followed:
        """Answers in the order given, whichever road each has gone."""
        direct = _Written({}, [])
        if self._known.is_kept:
            await self._learning.wait(outcome.lease.head.flow for outcome in outcomes)
            direct = await self._write(outcomes, claim)
        written = direct.answers
        rest = [outcome for place, outcome in enumerate(outcomes) if place not in written]
        others: list[Finished] = []
        for start in range(0, len(rest), BATCH_LIMIT):
            others.extend(await usual(rest[start : start + BATCH_LIMIT]))
        if written:
            told = ends_of([outcomes[place] for place in written], list(written.values()))
            self._hints.publish(Hint(finished=told))
        left = iter(others)
        answers = [written.get(place) or next(left) for place in range(len(outcomes))]
        return Followed(answers, direct.leases, direct.is_unanswered)

    async def _write(self, outcomes: Sequence[Outcome], claim: Claim | None) -> _Written:
        now_ms = self._clock.now_ms()
        ends = self._ends(outcomes, now_ms)
        jobs = self._jobs(ends, now_ms)
        if not jobs:
            return _Written({}, [])
        if claim is not None:
            self._offer(jobs, claim)
        try:
            answers = await self._rounds.run(jobs, lambda: now_ms)
        except FlowFabricError:
            # Whether it was written is unknown; the usual road finds out.
            for job in jobs:
                self._known.forget(job.flow.id)
            return _Written({}, [], is_unanswered=any(job.taken for job in jobs))
        except Exception as error:
            # One of them is the trouble: none of them goes this road again, and a dispatcher finds
            # out which it is.
            log_failed(
                logger,
                "could not dispatch ends together with their outcomes",
                error,
                {"flows": len(jobs)},
            )
            for job in jobs:
                self._known.leave(job.flow.id)
            return _Written({}, [], is_unanswered=any(job.taken for job in jobs))
        done = [job for job, is_done in zip(jobs, answers, strict=True) if is_done]
        return _Written(
            {end.place: finished_as(end.transition) for job in done for end in ends[job.flow.id]},
            [Lease(head, job.among[head.id]) for job in done for head in job.taken],
        )

    def _ends(self, outcomes: Sequence[Outcome], now_ms: int) -> dict[str, list[_End]]:
        """By flow the ends of members of flows that are known."""
        ends: dict[str, list[_End]] = {}
        for place, outcome in enumerate(outcomes):
            flow = outcome.lease.head.flow
            if flow and self._known.knows(flow):
                decided = decide_or_refuse(outcome, now_ms, leaves_line=False)
                if not isinstance(decided, Transition):
                    continue
                line = end_of(outcome.lease.head, decided.patch, now_ms)
                if line is not None:
                    ends.setdefault(flow, []).append(_End(place, outcome, decided, line))
        return ends

    def _jobs(self, ends: Mapping[str, Sequence[_End]], now_ms: int) -> list[Job]:
        ended = {
            flow: [patched(end.outcome.lease.head, end.transition.patch) for end in mine]
            for flow, mine in ends.items()
        }
        return [
            Job(
                view.flow,
                [end.line for end in ends[flow]],
                now_ms,
                view=view,
                is_leased=False,
                is_all=False,
                ends=[end.transition for end in ends[flow]],
                ended=ended[flow],
            )
            for flow, view in self._known.views(ended).items()
            if view.flow is not None and not is_for_dispatchers(view.flow)
        ]

    def _offer(self, jobs: Sequence[Job], claim: Claim) -> None:
        """Each end can be followed by one of those that it sets free: the others are for all."""
        room = claim.limit
        for job in jobs:
            limit = min(len(job.ends), room)
            room -= limit
            if limit:
                job.claim, job.takes_up_to = claim, limit
                job.among = self._known.payloads(job.flow.id)
