"""Goes over the members of flows that are not settled and repairs what should not be.

Many small flows are looked at together, a large one a page of members at a time. A repair is one
commit under the flow's `rev`, and the dispatcher does what follows from it.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowfabric.core.flow.audit import audit_members
from flowfabric.core.flow.model import Flow
from flowfabric.core.flow.round import Round
from flowfabric.core.flow.views import Members, Sight, View
from flowfabric.loggers import logger_of
from flowfabric.store.clock import FollowingClock
from flowfabric.store.protocol import Store

logger = logger_of("flowfabric.dependency_reconciler")

MEMBERS = 500
EDGES = 5_000


async def audit(
    store: Store, clock: FollowingClock, flows: Sequence[Flow], after: str
) -> tuple[int, Flow | None, str]:
    """How many repairs the members of these flows needed, and where to go on if there is a flow
    with more of them than one look shows. `after` is where to begin in the first flow."""
    pages = [Members(after="" if place else after, limit=MEMBERS) for place, _ in enumerate(flows)]
    looked = await store.graph(
        [
            Sight(flow=flow.id, members=page, lines=True)
            for flow, page in zip(flows, pages, strict=True)
        ]
    )
    large = next((view for view in looked if len(view.members) == MEMBERS), None)
    seen = [view for view in looked if view.flow is not None and view.members]
    if large is not None and large in seen:
        seen = seen[: seen.index(large) + 1]
    repairs = await _repair(store, clock, seen)
    if large is None:
        return repairs, None, ""
    return repairs, large.flow, large.members[-1]


async def _repair(store: Store, clock: FollowingClock, seen: Sequence[View]) -> int:
    sights = [
        Sight(flow=view.flow.id, entering=view.members, leaving=view.members, edges=EDGES)
        for view in seen
        if view.flow is not None
    ]
    around = await store.graph(sights) if sights else []
    now_ms = clock.now_ms()
    works: list[tuple[Round, int]] = []
    for page, beside in zip(seen, around, strict=True):
        # Two looks are one if nobody has written to the flow in between.
        if page.flow is None or beside.flow is None or page.flow.rev != beside.flow.rev:
            continue
        work = Round(page.flow, now_ms)
        if repairs := audit_members(work, page, beside):
            works.append((work, repairs))
    if not works:
        return 0
    changes = [work.changeset(busy_until_ms=work.flow.busy_until_ms) for work, _ in works]
    answers = await store.commit_each(changes, now_ms)
    repaired = 0
    for (work, repairs), is_done in zip(works, answers, strict=True):
        if is_done:
            repaired += repairs
            extra = {"flow": work.flow.id, "repairs": repairs}
            logger.error("repaired flow %s", work.flow.id, extra=extra)
    return repaired
