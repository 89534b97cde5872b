"""Documents: small named records that a store keeps without knowing what they mean.

A document is found by kind, namespace and name. Its `rev` guards every write: a put says which one
it saw, and a put that saw another one is refused with what is there. `due_ms` puts it among the
timers, its words into an index of its kind and namespace. What a kind means is said in the core,
in a module of its own; a store learns no word of it.

All documents of one kind and namespace are in one scope, so that a listing is one call.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from flowfabric.core import exact, names
from flowfabric.core.ids import crc16
from flowfabric.errors import InvalidInput

WORDS_MAX = 64
DUE_MS_MAX = 2**52

# The revision of a document that must not exist, and of one whose revision cannot be read.
NOT_THERE = 0
UNREADABLE_REV = -1


class Document(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """As it is stored. Words are in order, each once."""

    kind: str
    namespace: str
    name: str
    rev: int
    due_ms: int | None
    words: tuple[str, ...]
    body: bytes


class DamagedDocument(msgspec.Struct, frozen=True, gc=False):
    """One that cannot be read, and why. With its `rev` it can be written anew or removed."""

    kind: str
    namespace: str
    name: str
    rev: int
    problem: str


class Put(msgspec.Struct, frozen=True, gc=False):
    """Write a document that has the revision `rev`, or create it (`rev` 0: it must not exist).

    Without a body it is removed. Made by `create`, `change` and `remove`, which look at every part.
    """

    kind: str
    namespace: str
    name: str
    rev: int
    due_ms: int | None
    words: tuple[str, ...]
    body: bytes | None

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.kind, self.namespace, self.name)


class PutDone(msgspec.Struct, frozen=True, gc=False):
    """Written; the revision of the document since then, 0 if it was removed."""

    rev: int


class PutRefused(msgspec.Struct, frozen=True, gc=False):
    """Nothing was written; what was there in that moment, None if nothing was."""

    there: Document | DamagedDocument | None


AnyDocument = Document | DamagedDocument
PutAnswer = PutDone | PutRefused


class DocumentQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Documents of one kind and namespace in the order of their names, as bytes; `after` excluded.
    With a word only those that have it."""

    kind: str
    namespace: str
    word: str = ""
    after: str = ""
    limit: int = 100


def create(
    kind: str,
    namespace: str,
    name: str,
    *,
    body: bytes,
    words: Iterable[str] = (),
    due_ms: int | None = None,
) -> Put:
    """A put of a document that must not exist."""
    return Put(
        names.kind_name(kind),
        names.namespace_name(namespace),
        names.document_name(name),
        NOT_THERE,
        _instant(due_ms),
        _words(words),
        names.body(body, "body"),
    )


def change(
    seen: AnyDocument,
    *,
    body: bytes,
    words: Iterable[str],
    due_ms: int | None,
) -> Put:
    """A put in place of what was seen."""
    return Put(
        seen.kind,
        seen.namespace,
        seen.name,
        seen.rev,
        _instant(due_ms),
        _words(words),
        names.body(body, "body"),
    )


def remove(seen: AnyDocument) -> Put:
    """A put that leaves nothing of what was seen."""
    return Put(seen.kind, seen.namespace, seen.name, seen.rev, None, (), None)


def rev_after(put: Put, now_ms: int) -> int:
    """The revision that a put gives. A new document begins with the instant of its creation: one
    that is removed and made again never has a revision that somebody still remembers."""
    if put.body is None:
        return NOT_THERE
    return now_ms if put.rev in (NOT_THERE, UNREADABLE_REV) else put.rev + 1


def written(put: Put, now_ms: int) -> Document | None:
    """The document after a put; None if it is removed."""
    if put.body is None:
        return None
    rev = rev_after(put, now_ms)
    return Document(*put.key, rev, put.due_ms, put.words, put.body)


def was_done(put: Put, answer: PutAnswer) -> bool:
    """Whether a put is in effect: written now, or by an earlier call whose answer was lost."""
    if isinstance(answer, PutDone):
        return True
    there = answer.there
    if put.body is None or not isinstance(there, Document):
        return put.body is None and there is None
    is_next = put.rev == NOT_THERE or there.rev == put.rev + 1
    return is_next and (there.due_ms, there.words, there.body) == (put.due_ms, put.words, put.body)


def scope_of(kind: str, namespace: str, count: int) -> int:
    """Which of so many scopes holds the documents of a kind and namespace."""
    return crc16(f"{kind}\0{namespace}".encode()) % count


def _words(words: Iterable[str]) -> tuple[str, ...]:
    chosen = sorted({names.index_word(word) for word in words})
    if len(chosen) > WORDS_MAX:
        raise InvalidInput(
            f"got {len(chosen)} words", field="words", hint=f"use at most {WORDS_MAX}"
        )
    return tuple(chosen)


def _instant(due_ms: int | None) -> int | None:
    if due_ms is None:
        return None
    return exact.whole(due_ms, "due_ms", "use milliseconds since 1970", low=0, high=DUE_MS_MAX)
