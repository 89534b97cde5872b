"""Flows with something to do, and parts of their graphs.

Where something is to be done is found through hints, as timers are: one look when there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from flowfabric.core.flow.model import Flow, Unreadable
from flowfabric.core.flow.views import FlowQuery, Pending, Sight, Turn, View
from flowfabric.core.ids import ExecutionId, FlowId, PartitionCounts, flow_partition
from flowfabric.errors import InvalidInput
from flowfabric.store.damage import unreadable_flow
from flowfabric.store.valkey.answers import Change, answer_of
from flowfabric.store.valkey.calls import Call, Caller, command, function, reading
from flowfabric.store.valkey.codec import scored, uuid_of
from flowfabric.store.valkey.flows.codec import flows_of, pending_of, view_of, waiting_of
from flowfabric.store.valkey.hinting import FLOWS, Hinting
from flowfabric.store.valkey.link import Cell
from flowfabric.store.valkey.writing import Keys, Moment

# How many flows a partition tells at a time when all are asked, beside its even share.
SHARE = 4
# Every line there is, whether its time has come or not.
ALL = -1
Taken = Pending | Unreadable


class FlowReading:
    def __init__(self, caller: Caller, keys: Keys, hinting: Hinting) -> None:
        self._caller = caller
        self._keys = keys
        self._hinting = hinting

    # -- pending ----------------------------------------------------------------------------

    async def pending(self, turn: Turn, moment: Moment, counts: PartitionCounts) -> list[Taken]:
        """Those that are named, or the next ones of the round; who was faster has got them."""
        if turn.only:
            return await self._named(turn, moment, counts)
        await self._hinting.sweep_timers(moment)
        ids = await self._waiting(turn, moment, counts)
        later = sorted(id for id in ids if id > turn.after)
        chosen = [*later, *sorted(id for id in ids if id <= turn.after)][: turn.limit]
        return await self._take(chosen, turn, moment, counts)

    async def _named(self, turn: Turn, moment: Moment, counts: PartitionCounts) -> list[Taken]:
        left = list(dict.fromkeys(turn.only))
        taken: list[Taken] = []
        while left and len(taken) < turn.limit:
            count = turn.limit - len(taken)
            some, left = left[:count], left[count:]
            taken = [*taken, *await self._take(some, turn, moment, counts)]
        return taken

    async def next_turn(self, now_ms: int) -> int | None:
        """As far as hints know: the first time of each partition is one."""
        key = f"{self._keys.prefix}:{FLOWS}"
        reply = await self._caller.one(command(key, "ZRANGE", key, 0, -1, "WITHSCORES"))
        return min((int(at) for _, at in scored(reply) if at > now_ms), default=None)

    async def _waiting(self, turn: Turn, moment: Moment, counts: PartitionCounts) -> list[FlowId]:
        """Flows with something to do in the partitions that are said to have one."""
        hints = f"{self._keys.prefix}:{FLOWS}"
        reply = await self._caller.one(reading("hinted", hints, *moment.cells, counts.flow))
        hinted = scored(answer_of(reply).value)
        numbers = {int(number): f"{at:.0f}" for number, at in hinted if at <= turn.now_ms}
        calls = [
            reading("flows", self._keys.partition(n), *moment.cells, turn.after, turn.limit)
            for n in numbers
        ]
        found: list[FlowId] = []
        changes: list[Change] = []
        for number, answer in zip(numbers, await self._caller.all(calls), strict=True):
            version, first, ids = waiting_of(answer)
            found += [id for id in ids if _lives_in(id, number, counts)]
            if first != numbers[number]:
                changes.append(Change(FLOWS, str(number), version, first))
        await self._hinting.tell(changes)
        return found

    async def _take(
        self, ids: Sequence[FlowId], turn: Turn, moment: Moment, counts: PartitionCounts
    ) -> list[Taken]:
        by_partition: dict[int, list[FlowId]] = {}
        for id in ids:
            by_partition.setdefault(flow_partition(id, counts), []).append(id)
        header = (*moment.cells, self._keys.hints, turn.until_ms, turn.lines)
        calls = [
            function("flow_take", self._keys.partition(number), *header, *some)
            for number, some in by_partition.items()
        ]
        replies = await self._caller.all(calls)
        answers = [answer_of(reply) for reply in replies]
        await self._hinting.tell([change for answer in answers for change in answer.changes])
        taken = {
            id: each
            for answer in answers
            for id, each in pending_of(answer.value, turn.until_ms).items()
        }
        return [taken[id] for id in ids if id in taken]

    # -- listing ----------------------------------------------------------------------------

    async def find(self, query: FlowQuery, moment: Moment, counts: PartitionCounts) -> list[Flow]:
        """Ids are spread over all partitions: each tells some of its own, and is asked again while
        it may have one that comes before the last of those that are known."""
        share = min(query.limit, SHARE + query.limit // counts.flow)
        reached = dict.fromkeys(range(counts.flow), query.after)
        found: dict[str, Flow | Unreadable] = {}
        asked = list(reached) if query.limit > 0 else []
        while asked:
            page = msgspec.structs.replace(query, limit=share)
            calls = [self._find_call(n, reached[n], page, moment) for n in asked]
            for number, reply in zip(asked, await self._caller.all(calls), strict=True):
                last, flows = flows_of(reply)
                found |= flows
                reached[number] = last
            found = dict(sorted(found.items())[: query.limit])
            bound = list(found)[-1] if len(found) == query.limit else None
            asked = [n for n, last in reached.items() if last and (bound is None or last < bound)]
        return [_readable(flow) for flow in found.values()]

    def _find_call(self, number: int, after: str, page: FlowQuery, moment: Moment) -> Call:
        scope = self._keys.partition(number)
        named = (page.namespace or "", page.name or "")
        header = (*moment.cells, after, page.limit, *named, int(page.unsettled))
        return reading("flow_find", scope, *header, *page.states)

    # -- graph ------------------------------------------------------------------------------

    async def graph(
        self, sights: Sequence[Sight], moment: Moment, counts: PartitionCounts
    ) -> list[View]:
        """One call for each: what it sees is of one moment."""
        numbers = [flow_partition(sight.flow, counts) for sight in sights]
        places = list(zip(sights, numbers, strict=True))
        calls = [self._look(sight, number, moment) for sight, number in places]
        replies = await self._caller.all(calls)
        return [
            view_of(sight, number, reply)
            for (sight, number), reply in zip(places, replies, strict=True)
        ]

    def _look(self, sight: Sight, number: int, moment: Moment) -> Call:
        page = sight.members
        flags = (sight.whole, sight.ends, page is not None, sight.tally)
        lists = (sight.heads, sorted(sight.leaving), sight.entering, sight.groups)
        lines = (ALL, 0) if sight.lines else (sight.due_lines, sight.now_ms)
        cells: list[Cell] = [sight.flow, *lines, *map(int, flags), sight.edges]
        for ids in lists:
            cells += _listed(ids, number)
        if page is not None:
            after = uuid_of(ExecutionId(page.after)) if page.after else ""
            cells += (after, page.limit, len(page.states), *page.states)
        return reading("graph", self._keys.partition(number), *moment.cells, *cells)


def _readable(flow: Flow | Unreadable) -> Flow:
    if isinstance(flow, Unreadable):
        raise unreadable_flow(flow.name, flow.problem)
    return flow


def _lives_in(id: FlowId, partition: int, counts: PartitionCounts) -> bool:
    """What is kept under a name that no flow can have belongs to nobody."""
    try:
        return flow_partition(id, counts) == partition
    except InvalidInput:
        return False


def _listed(ids: Iterable[ExecutionId], partition: int) -> list[Cell]:
    """How many there are, and those; a flow has nobody in another partition, and a text that is
    no id is nobody's."""
    tag = f"{{fp:{partition}}}:"
    mine = [uuid_of(id) for id in dict.fromkeys(ids) if id.startswith(tag)]
    return [len(mine), *mine]
