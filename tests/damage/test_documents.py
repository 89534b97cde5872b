"""Damaged documents: each is told by name and column, can be put right, and stops nothing else."""

from __future__ import annotations

import pytest

from flowfabric.core.documents import (
    DamagedDocument,
    Document,
    DocumentQuery,
    PutDone,
    change,
    create,
    remove,
)
from flowfabric.store import Store
from flowfabric.store.upkeep import Damage, Inspectable
from flowfabric.testing.clock import VirtualClock
from tests.damage.cases import CELLS
from tests.damage.spots import COLUMNS, Cell, Word, raw_client

KIND, SPACE = "made-up", "default"


async def found(store: Store, word: str = "") -> list[Document | DamagedDocument]:
    return await store.documents(DocumentQuery(kind=KIND, namespace=SPACE, word=word))


async def furnish(store: Store, clock: VirtualClock) -> list[Document]:
    now_ms = clock.now_ms()
    puts = [create(KIND, SPACE, name, body=b"1", words=("w",), due_ms=now_ms) for name in "abc"]
    await store.put(puts, now_ms)
    return [each for each in await found(store) if isinstance(each, Document)]


@pytest.mark.parametrize("column", COLUMNS[Document])
@pytest.mark.parametrize("cell", CELLS.values())
async def test_a_damaged_document_is_told_and_stops_nothing_else(
    store: Store, clock: VirtualClock, column: str, cell: Cell
) -> None:
    first, spoilt, last = await furnish(store, clock)
    async with raw_client(store) as raw:
        if not await raw.write(spoilt, column, cell):
            return
    now_ms = clock.now_ms()
    for word in ("", "w"):
        a, b, c = await found(store, word)
        assert (a, c) == (first, last)
        assert b.name == "b"
        if isinstance(b, DamagedDocument):
            assert b.problem.startswith(f"column {column}: ")
    due = (await store.due(now_ms, 9, [KIND])).documents
    assert [each for each in due if each.name != "b"] == [first, last]
    others = [change(each, body=b"2", words=(), due_ms=None) for each in (first, last)]
    assert await store.put(others, now_ms) == [PutDone(first.rev + 1), PutDone(last.rev + 1)]


@pytest.mark.parametrize("column", COLUMNS[Document])
@pytest.mark.parametrize("is_removed", [False, True])
async def test_a_damaged_document_can_be_written_anew_or_removed(
    store: Store, clock: VirtualClock, column: str, is_removed: bool
) -> None:
    _, spoilt, _ = await furnish(store, clock)
    async with raw_client(store) as raw:
        if not await raw.write(spoilt, column, b"\xff" if column != "body" else "melted"):
            return
    _, seen, _ = await found(store)
    now_ms = clock.now_ms()
    if is_removed:
        assert await store.put([remove(seen)], now_ms) == [PutDone(0)]
        assert [each.name for each in await found(store)] == ["a", "c"]
    else:
        (done,) = await store.put([change(seen, body=b"2", words=(), due_ms=5)], now_ms)
        assert isinstance(done, PutDone)
        _, anew, _ = await found(store)
        assert anew == Document(KIND, SPACE, "b", done.rev, 5, (), b"2")
    if column != "words":
        assert [each.name for each in await found(store, "w")] == ["a", "c"]


@pytest.mark.parametrize("store_kind", ["sqlite", "postgres"])
async def test_words_without_a_document_are_found_by_a_deep_look(
    store: Store, clock: VirtualClock
) -> None:
    _, spoilt, _ = await furnish(store, clock)
    assert isinstance(store, Inspectable)
    assert await store.inspect() == []
    async with raw_client(store) as raw:
        assert await raw.remove(spoilt)
    assert await store.inspect() == [
        Damage("table document_word", "1 rows have lost the record that they belong to")
    ]


MISSING = Damage("table document_word", "1 words of documents have no row")
STRANGE = Damage("table document_word", "1 rows match no word of their document")


@pytest.mark.parametrize("store_kind", ["sqlite", "postgres"])
async def test_words_that_are_not_those_of_a_document_are_found_by_a_deep_look(
    store: Store, clock: VirtualClock
) -> None:
    first, second, _ = await furnish(store, clock)
    assert isinstance(store, Inspectable)
    async with raw_client(store) as raw:
        assert await raw.remove(Word(first, "w"))
        assert await store.inspect() == [MISSING]
        await store.put([change(first, body=b"1", words=(), due_ms=None)], clock.now_ms())
        assert await store.inspect() == []
        assert await raw.write(Word(second, "w"), "word", "v")
        assert await store.inspect() == [STRANGE, MISSING]
