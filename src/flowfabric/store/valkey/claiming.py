"""Claims: where hints say that something is ready, best first.

On one server a single call looks at the hints, compares the heads of the hinted partitions and
takes the best. In a cluster the same is three rounds: hints, heads, and each partition's share.
Hints may be wrong in both directions; a look at everything, now and then, is the net under them.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowfabric.core.ids import PartitionCounts, partition_of
from flowfabric.core.model import Claim, Lease
from flowfabric.errors import ClockSkew
from flowfabric.store.damage import lease_or_unusable
from flowfabric.store.valkey.answers import Answer, answer_of
from flowfabric.store.valkey.calls import Call, Caller, command, function, reading
from flowfabric.store.valkey.codec import Taken, taken_of, text_of, uuid_of
from flowfabric.store.valkey.heads import lease_of
from flowfabric.store.valkey.hinting import Hinting
from flowfabric.store.valkey.link import Cell, Reply
from flowfabric.store.valkey.sharing import Sharing
from flowfabric.store.valkey.writing import Keys, Moment

# What one call takes; more is taken by several calls, sent together, which costs the server less.
AT_ONCE = 125


class Claiming:
    def __init__(self, caller: Caller, keys: Keys, hinting: Hinting) -> None:
        self._caller = caller
        self._keys = keys
        self._hinting = hinting
        self._sharing = Sharing(caller, keys, hinting)

    async def claim(self, ask: Claim, moment: Moment, counts: PartitionCounts) -> list[Lease]:
        if ask.repeated:
            held = await self._held(ask, moment, counts)
            if held:
                return held
        if ask.only is not None:
            return await self._one(ask, moment)
        await self._hinting.sweep_if_due(ask.namespace, ask.routes, moment)
        leases = await self._best(ask, moment)
        if not leases and await self._hinting.sweep_if_new(ask.namespace, ask.routes, moment):
            leases = await self._best(ask, moment)
        return leases

    async def _held(self, ask: Claim, moment: Moment, counts: PartitionCounts) -> list[Lease]:
        """What an earlier call with this token took; it may be anywhere."""
        calls = [
            reading("held", self._keys.partition(number), *moment.cells, ask.token)
            for number in range(counts.flow)
        ]
        replies = await self._caller.all(calls)
        answers = [answer_of(reply) for reply in replies]
        return await self._leases([row for a in answers for row in taken_of(a.value)])

    async def _one(self, ask: Claim, moment: Moment) -> list[Lease]:
        if ask.only is None:
            return []
        scope = self._keys.partition(partition_of(ask.only))
        cells = (*self._cells(ask, moment, 1), uuid_of(ask.only))
        return await self._take([function("claim_one", scope, *cells)], ask)

    async def _best(self, ask: Claim, moment: Moment) -> list[Lease]:
        if self._keys.inline:
            scope = self._keys.shared("hints")
            limits = [min(AT_ONCE, ask.limit - n) for n in range(0, ask.limit, AT_ONCE)]
            cells = [self._cells(ask, moment, limit) for limit in limits]
            return await self._take([function("claim_hinted", scope, *c) for c in cells], ask)
        taken: list[Lease] = []
        while len(taken) < ask.limit:
            try:
                more = await self._shared(ask, moment, ask.limit - len(taken))
            except ClockSkew:
                # It took so long that its time is over: what it has is held, and is its answer.
                if not taken:
                    raise
                break
            if not more:
                break
            taken += more
        return _sorted(taken)

    async def _shared(self, ask: Claim, moment: Moment, limit: int) -> list[Lease]:
        """Of each partition its share of the best."""
        calls = [
            function(
                "claim",
                self._keys.partition(share.partition),
                *self._cells(ask, moment, share.limit, share.routes),
            )
            for share in await self._sharing.shares(ask, moment, limit)
        ]
        return await self._take(calls, ask)

    async def _take(self, calls: Sequence[Call], ask: Claim) -> list[Lease]:
        replies = await self._caller.all(calls)
        answers = _in_time(replies)
        self._caller.trips.look_at(sum(answer.examined for answer in answers))
        await self._hinting.tell([change for answer in answers for change in answer.changes])
        return await self._leases([row for a in answers for row in taken_of(a.value)])

    async def _leases(self, rows: Sequence[Taken]) -> list[Lease]:
        leases: list[Lease] = []
        large: list[Lease] = []
        for id, text in rows:
            lease, is_large = lease_of(id, text)
            if lease is not None:
                (large if is_large else leases).append(lease)
        return _sorted([*leases, *await self._payloads(large)])

    async def _payloads(self, leases: Sequence[Lease]) -> list[Lease]:
        """Large ones, each by a command of its own: they need not pass through a function."""
        scopes = [self._keys.partition(partition_of(lease.id)) for lease in leases]
        calls = [
            command(scope, "GET", f"{scope}:payload:{uuid_of(lease.id)}")
            for scope, lease in zip(scopes, leases, strict=True)
        ]
        bodies = await self._caller.all(calls)
        return [lease_or_unusable(e.head, text_of(b)) for e, b in zip(leases, bodies, strict=True)]

    def _cells(
        self, ask: Claim, moment: Moment, limit: int, some: Sequence[str] = ()
    ) -> tuple[Cell, ...]:
        """What a claim says: of some of its routes, or of all of them."""
        routes = some or tuple(dict.fromkeys(ask.routes))
        return (
            *moment.cells,
            self._keys.hints,
            ask.namespace,
            limit,
            ask.worker,
            ask.token,
            ask.now_ms + ask.ttl_ms,
            int(ask.start),
            len(routes),
            *routes,
        )


def _in_time(replies: Sequence[Reply]) -> list[Answer]:
    """A call that came too late has taken nothing; whoever is told so must not hold anything."""
    answers: list[Answer] = []
    late: ClockSkew | None = None
    for reply in replies:
        try:
            answers.append(answer_of(reply))
        except ClockSkew as error:
            late = error
    if late is not None and not any(taken_of(answer.value) for answer in answers):
        raise late
    return answers


def _sorted(leases: list[Lease]) -> list[Lease]:
    leases.sort(key=lambda lease: (-lease.head.priority, lease.head.created_ms, lease.head.id))
    return leases
