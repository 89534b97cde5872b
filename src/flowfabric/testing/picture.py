"""Picture: everything that a store can be asked for, at one moment.

The invariants are judged on pictures, so they hold for every store and need none of its insides.
Nothing here judges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from flowfabric.core.documents import AnyDocument, DocumentQuery
from flowfabric.core.entries import Kept, Topic
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import (
    DueBatch,
    Ended,
    Event,
    Execution,
    Feed,
    Lane,
    Loaded,
    Query,
    Want,
)
from flowfabric.store.protocol import Store

ALL = 1_000_000
FAR_MS = 10**14
# Made up: no store knows what they mean, and nothing but a machine puts them.
DOCUMENT_KINDS = ("red", "blue")
DOCUMENT_WORDS = ("sweet", "sour")
TOPICS = ("notes", "steps")


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """Executions with all that is beside them, both indexes of timers, the log, the lanes, entries;
    documents, by name and by word, and those that are due."""

    now_ms: int
    loaded: Mapping[ExecutionId, Loaded]
    ends: Mapping[ExecutionId, Ended]
    timers: list[ExecutionId]
    overdue: list[ExecutionId]
    next_ms: int | None
    log: list[Event]
    lanes: list[Lane]
    documents: list[AnyDocument]
    due_documents: DueBatch
    entries: Mapping[ExecutionId, list[Kept]]

    @property
    def rows(self) -> list[Execution]:
        return [loaded.head for loaded in self.loaded.values()]

    def row(self, id: ExecutionId) -> Execution | None:
        loaded = self.loaded.get(id)
        return None if loaded is None else loaded.head

    def histories(self) -> dict[ExecutionId, list[Event]]:
        """The lines of each execution, oldest first."""
        found: dict[ExecutionId, list[Event]] = {}
        for line in self.log:
            found.setdefault(line.execution, []).append(line)
        return found

    def alike(self) -> tuple[object, ...]:
        """What two stores with the same history have in common: all but their own cursors, and the
        tokens of requests, which are random."""
        lines = [msgspec.structs.replace(line, cursor="") for line in self.log]
        loaded = {id: _without_tokens(each) for id, each in self.loaded.items()}
        beside = (lines, self.lanes, self.entries, self.documents, self.due_documents.documents)
        return (loaded, self.ends, self.timers, self.overdue, self.next_ms, *beside)


def _without_tokens(loaded: Loaded) -> Loaded:
    answered = [entry.rpartition("/")[0] for entry in loaded.head.requests.split()]
    head = msgspec.structs.replace(loaded.head, requests=" ".join(answered))
    return msgspec.structs.replace(loaded, head=head)


async def look(store: Store, now_ms: int) -> Picture:
    """A picture of a store that nobody writes to meanwhile."""
    ids = [row.id for row in await store.find(Query(limit=ALL))]
    loaded = await store.load(Want(ids=ids, payload=True, tags=True, attempts=True))
    ends = await store.endings(ids)
    overdue = await store.due(now_ms, ALL)
    every = await store.due(FAR_MS, ALL)
    return Picture(
        now_ms=now_ms,
        loaded={found.head.id: found for found in loaded if found is not None},
        ends={end.id: end for end in ends if end is not None},
        timers=[row.id for row in every.rows],
        overdue=[row.id for row in overdue.rows],
        next_ms=overdue.next_ms,
        log=await store.tail(Feed(limit=ALL)),
        lanes=await store.lanes("", ALL),
        documents=[
            document
            for kind in DOCUMENT_KINDS
            for word in ("", *DOCUMENT_WORDS)
            for document in await store.documents(
                DocumentQuery(kind=kind, namespace="default", word=word, limit=ALL)
            )
        ],
        due_documents=await store.due(now_ms, ALL, DOCUMENT_KINDS),
        entries=await _entries(store, [found.head for found in loaded if found is not None]),
    )


async def _entries(store: Store, rows: Sequence[Execution]) -> dict[ExecutionId, list[Kept]]:
    """Of every generation there was."""
    asks = [
        Topic(row.id, topic, limit=ALL, generation=generation)
        for row in rows
        for generation in range(row.generation + 1)
        for topic in TOPICS
    ]
    entries: dict[ExecutionId, list[Kept]] = {row.id: [] for row in rows}
    for ask, found in zip(asks, await store.entries(asks), strict=True):
        entries[ask.id] += found
    return entries
