"""The documents of the memory store: a dict, looked through from end to end."""

from __future__ import annotations

from collections.abc import Sequence

from flowfabric.core.documents import (
    NOT_THERE,
    AnyDocument,
    DamagedDocument,
    Document,
    DocumentQuery,
    Put,
    PutAnswer,
    PutDone,
    PutRefused,
    rev_after,
    written,
)
from flowfabric.store.upkeep import Size

Key = tuple[str, str, str]


class DocumentBook:
    """`spoil` makes one unreadable, as a raw client could."""

    def __init__(self) -> None:
        self._documents: dict[Key, Document] = {}
        self._problems: dict[Key, str] = {}

    def put(self, put: Put, now_ms: int) -> PutAnswer:
        there = self._documents.get(put.key)
        if put.rev != (NOT_THERE if there is None else there.rev):
            return PutRefused(self._seen(put.key) if there else None)
        after = written(put, now_ms)
        self._problems.pop(put.key, None)
        if after is None:
            self._documents.pop(put.key, None)
        else:
            self._documents[put.key] = after
        return PutDone(rev_after(put, now_ms))

    def find(self, query: DocumentQuery) -> list[AnyDocument]:
        keys = sorted(
            key
            for key, document in self._documents.items()
            if key[:2] == (query.kind, query.namespace)
            and key[2] > query.after
            and (not query.word or query.word in document.words)
        )
        return [self._seen(key) for key in keys[: query.limit]]

    def due(
        self, now_ms: int, limit: int, kinds: Sequence[str]
    ) -> tuple[list[AnyDocument], int | None]:
        """What is due, and when the next one will be."""
        timers = sorted(
            (document.due_ms, key)
            for key, document in self._documents.items()
            if document.due_ms is not None and document.kind in kinds
        )
        passed = [self._seen(key) for at_ms, key in timers if at_ms <= now_ms]
        return passed[:limit], next((at_ms for at_ms, _ in timers if at_ms > now_ms), None)

    def spoil(self, document: Document, problem: str) -> None:
        key = (document.kind, document.namespace, document.name)
        self._problems.pop(key, None)
        if problem:
            self._problems[key] = problem

    def sizes(self) -> Size:
        bodies = sum(len(document.body) for document in self._documents.values())
        return Size("document", len(self._documents), bodies)

    def _seen(self, key: Key) -> AnyDocument:
        document = self._documents[key]
        problem = self._problems.get(key)
        return document if problem is None else DamagedDocument(*key, document.rev, problem)
