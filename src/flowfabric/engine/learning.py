"""Small flows that were submitted elsewhere, read as a whole when a member of theirs is worked on.

From then on they are known as if they had been made here (`known_flows.py`). It happens beside the
work, in few calls for all flows of a claim. Who ends a member meanwhile waits for it: that is
sooner over than the road of a flow that is not known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence

from flowfabric.core.flow.model import Flow, FlowState
from flowfabric.core.flow.views import Members, Sight, View
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Submission, Want
from flowfabric.core.transition import Changeset
from flowfabric.engine.isolation import isolated, log_failed
from flowfabric.engine.known_flows import RECORDS_MAX, KnownFlows, is_for_dispatchers
from flowfabric.loggers import logger_of
from flowfabric.store.protocol import Store

logger = logger_of("flowfabric.engine")

TOGETHER = 1_000


class Learning:
    """Reads flows for `known`; one that is read already is not read again meanwhile."""

    def __init__(self, store: Store, known: KnownFlows) -> None:
        self._store = store
        self._known = known
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def begin(self, flows: Iterable[Flow]) -> None:
        """Members of these are about to run here."""
        worth = [flow for flow in flows if self._is_worth(flow)]
        task: asyncio.Task[None] | None = None
        for some in _portions(worth):
            task = asyncio.get_running_loop().create_task(self._learn(some, task))
            self._under_way |= {flow.id: task for flow in some}
            task.add_done_callback(self._over)

    async def wait(self, flows: Iterable[str]) -> None:
        """Until these are known, as far as they are being read in this event loop."""
        if not self._under_way:
            return
        here = asyncio.get_running_loop()
        tasks = {self._under_way[flow] for flow in flows if flow in self._under_way}
        mine = [task for task in tasks if task.get_loop() is here]
        if mine:
            await asyncio.wait(mine)

    async def close(self) -> None:
        for task in set(self._under_way.values()):
            task.cancel()
        await self.wait(list(self._under_way))

    def _is_worth(self, flow: Flow) -> bool:
        """Whether something follows from an end, and nobody else is known to work on it."""
        is_new = flow.id not in self._under_way and self._known.is_wanted(flow.id)
        is_plain = flow.state is FlowState.OPEN and not is_for_dispatchers(flow)
        return is_new and is_plain and flow.ended + 1 < flow.total and _size(flow) <= RECORDS_MAX

    async def _learn(self, flows: Sequence[Flow], before: asyncio.Task[None] | None) -> None:
        """One portion after another: payloads of many members may be large."""
        try:
            if before is not None:
                await asyncio.wait([before])
            _, lost = await isolated(flows, self._read)
        except Exception as error:
            # Nothing is lost: what follows from ends is then written by a dispatcher.
            log_failed(logger, "could not read flows", error, {"flows": len(flows)})
            return
        for flow, problem in lost:
            log_failed(logger, "could not read a flow", problem, {"flow": flow.id})
            self._known.leave(flow.id)

    def _over(self, task: asyncio.Task[None]) -> None:
        """Whichever way it ended, also before it began."""
        for flow in [flow for flow, reader in self._under_way.items() if reader is task]:
            del self._under_way[flow]

    async def _read(self, flows: Sequence[Flow]) -> Sequence[None]:
        everybody = Members(limit=RECORDS_MAX)
        views = await self._store.graph(
            [Sight(flow=flow.id, whole=True, lines=True, members=everybody) for flow in flows]
        )
        # What ended first is acted on first: a flow with open lines is left to the dispatcher.
        quiet = [view for view in views if view.flow and not view.lines and not view.unreadable]
        wanted = [
            Sight(flow=view.flow.id, groups=view.members) for view in quiet if view.flow is not None
        ]
        if not wanted:
            return ()
        rest, payloads = await asyncio.gather(self._store.graph(wanted), self._payloads(quiet))
        for view, groups in zip(quiet, rest, strict=True):
            if view.flow is not None and groups.flow == view.flow and not groups.unreadable:
                self._known.keep(_as_made(view.flow, view, groups, payloads))
        return ()

    async def _payloads(self, views: Sequence[View]) -> dict[ExecutionId, bytes]:
        ids = sorted(id for view in views for id in view.members)
        loaded = await self._store.load(Want(ids=ids, payload=True)) if ids else []
        return {each.head.id: each.payload for each in loaded if each is not None}


def _size(flow: Flow) -> int:
    """How many records it has at most: each edge may have a group of its own."""
    return flow.total + 2 * flow.edges


def _portions(flows: Sequence[Flow]) -> Iterator[list[Flow]]:
    some: list[Flow] = []
    for flow in flows:
        if some and sum(map(_size, some)) + _size(flow) > TOGETHER:
            yield some
            some = []
        some.append(flow)
    if some:
        yield some


def _as_made(
    flow: Flow, view: View, rest: View, payloads: Mapping[ExecutionId, bytes]
) -> Changeset:
    """The flow as if it were submitted now."""
    members = [
        Submission(execution=view.heads[id], payload=payloads[id])
        for id in view.members
        if id in view.heads and id in payloads
    ]
    return Changeset(new_flows=[flow], members=members, edges=view.edges, groups=rest.groups)
