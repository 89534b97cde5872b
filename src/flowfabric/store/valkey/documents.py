"""Documents: all of one kind and namespace are in one partition, so that a listing is one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from flowfabric.core.documents import (
    AnyDocument,
    DocumentQuery,
    Put,
    PutAnswer,
    PutDone,
    PutRefused,
    rev_after,
    scope_of,
)
from flowfabric.core.ids import PartitionCounts
from flowfabric.store.valkey.answers import answer_of
from flowfabric.store.valkey.calls import Call, Caller, function, reading
from flowfabric.store.valkey.codec import document_of, documents_of, puts_of
from flowfabric.store.valkey.hinting import Hinting
from flowfabric.store.valkey.link import Cell, Reply
from flowfabric.store.valkey.writing import Keys, Moment

_encode = msgspec.json.Encoder().encode


class Documents:
    def __init__(self, caller: Caller, keys: Keys, hinting: Hinting) -> None:
        self._caller = caller
        self._keys = keys
        self._hinting = hinting

    async def put(
        self, batch: Sequence[Put], moment: Moment, counts: PartitionCounts
    ) -> list[PutAnswer]:
        groups = list(_parts(batch, counts))
        calls = [
            self._put_call(number, [batch[place] for place in places], moment)
            for number, places in groups
        ]
        replies = [answer_of(reply) for reply in await self._caller.all(calls)]
        await self._hinting.tell([change for reply in replies for change in reply.changes])
        answers: dict[int, PutAnswer] = {}
        for (_, places), reply in zip(groups, replies, strict=True):
            answers |= _answers(batch, places, reply.value, moment.now_ms)
        return [answers[place] for place in range(len(batch))]

    def _put_call(self, number: int, puts: Iterable[Put], moment: Moment) -> Call:
        cells = [cell for put in puts for cell in _cells(put, moment.now_ms)]
        scope = self._keys.partition(number)
        return function("document_put", scope, *moment.cells, self._keys.hints, *cells)

    async def find(
        self, query: DocumentQuery, moment: Moment, counts: PartitionCounts
    ) -> list[AnyDocument]:
        scope = self._keys.partition(scope_of(query.kind, query.namespace, counts.flow))
        wanted = (query.kind, query.namespace, query.word, query.after, query.limit)
        reply = await self._caller.one(reading("document_list", scope, *moment.cells, *wanted))
        return documents_of(query.kind, query.namespace, reply)


def _parts(batch: Sequence[Put], counts: PartitionCounts) -> Iterable[tuple[int, list[int]]]:
    """By partition, which puts go there, cut to what one call should carry. Those of one kind and
    namespace stay together: they are written as a whole."""
    found: dict[int, list[int]] = {}
    for place, put in enumerate(batch):
        found.setdefault(scope_of(put.kind, put.namespace, counts.flow), []).append(place)
    return found.items()


def _cells(put: Put, now_ms: int) -> tuple[Cell, ...]:
    due = "" if put.due_ms is None else put.due_ms
    body = (0, b"") if put.body is None else (1, put.body)
    words = _encode(put.words)
    return (*put.key, put.rev, rev_after(put, now_ms), due, words, *body)


def _answers(
    batch: Sequence[Put], places: Sequence[int], reply: Reply, now_ms: int
) -> dict[int, PutAnswer]:
    answers: dict[int, PutAnswer] = {}
    for place, (is_written, there) in zip(places, puts_of(reply), strict=True):
        put = batch[place]
        if is_written:
            answers[place] = PutDone(rev_after(put, now_ms))
        else:
            answers[place] = PutRefused(document_of(put.key, there) if there else None)
    return answers
