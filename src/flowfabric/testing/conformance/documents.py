"""Documents of made-up kinds: guarded by their revision, found by name, by word and by time."""

from __future__ import annotations

import asyncio
from operator import itemgetter

import pytest

from flowfabric.core.documents import (
    AnyDocument,
    Document,
    DocumentQuery,
    Put,
    PutDone,
    PutRefused,
    change,
    create,
    remove,
    was_done,
    written,
)
from flowfabric.core.model import DueBatch
from flowfabric.errors import ClockSkew, IllegalTransition
from flowfabric.store.hints import Hint
from flowfabric.store.protocol import Store
from flowfabric.testing.build import execution_id, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import head
from flowfabric.testing.conformance.steps import put as submit

KIND = "made-up"
SPACE = "default"
# Names whose order as bytes is not that of people, nor of UTF-16.
NAMES = ("a", "a b", "a:b", "b", "é", "\uffee", "\U0001f600")


def new(
    name: str,
    body: bytes = b"{}",
    *,
    kind: str = KIND,
    space: str = SPACE,
    words: tuple[str, ...] = (),
    due_ms: int | None = None,
) -> Put:
    return create(kind, space, name, body=body, words=words, due_ms=due_ms)


async def put(store: Store, clock: VirtualClock, *puts: Put) -> list[AnyDocument]:
    """Write these, and answer them as they should be now."""
    now_ms = clock.now_ms()
    after = [written(each, now_ms) for each in puts]
    assert await store.put(puts, now_ms) == [PutDone(each.rev if each else 0) for each in after]
    return [each for each in after if each is not None]


async def find(
    store: Store,
    kind: str = KIND,
    space: str = SPACE,
    *,
    word: str = "",
    after: str = "",
    limit: int = 100,
) -> list[AnyDocument]:
    query = DocumentQuery(kind=kind, namespace=space, word=word, after=after, limit=limit)
    return await store.documents(query)


async def test_there_are_no_documents_in_an_empty_store(store: Store, clock: VirtualClock) -> None:
    assert await find(store) == []
    assert await find(store, word="any") == []
    assert await store.put([], clock.now_ms()) == []
    assert await store.due(clock.now_ms(), 10, [KIND]) == DueBatch([], None)


async def test_a_document_comes_back_as_it_went_in(store: Store, clock: VirtualClock) -> None:
    body = bytes(range(256)) * 16
    made = await put(store, clock, new("one", body, words=("b", "a b", "é"), due_ms=5))
    assert made == await find(store)
    assert isinstance(made[0], Document)
    assert made[0].words == ("a b", "b", "é")


async def test_a_document_is_written_by_who_saw_it_last(store: Store, clock: VirtualClock) -> None:
    (first,) = await put(store, clock, new("one", b"1"))
    clock.advance(5)
    (second,) = await put(store, clock, change(first, body=b"2", words=("w",), due_ms=9))
    assert second.rev == first.rev + 1
    stale = change(first, body=b"3", words=(), due_ms=None)
    assert await store.put([stale], clock.now_ms()) == [PutRefused(second)]
    assert await store.put([remove(first)], clock.now_ms()) == [PutRefused(second)]
    assert await find(store) == [second]


async def test_what_exists_is_not_created_again(store: Store, clock: VirtualClock) -> None:
    (made,) = await put(store, clock, new("one", b"1", words=("mine",)))
    clock.advance(5)
    again = new("one", b"2", words=("theirs",))
    assert await store.put([again], clock.now_ms()) == [PutRefused(made)]
    assert await find(store, word="theirs") == []


async def test_what_is_not_there_is_neither_written_nor_removed(
    store: Store, clock: VirtualClock
) -> None:
    gone = Document(KIND, SPACE, "gone", 3, None, (), b"")
    puts = [change(gone, body=b"", words=(), due_ms=None)]
    assert await store.put(puts, clock.now_ms()) == [PutRefused(None)]
    assert await store.put([remove(gone)], clock.now_ms()) == [PutRefused(None)]
    assert await find(store) == []


async def test_a_document_that_is_made_again_has_another_revision(
    store: Store, clock: VirtualClock
) -> None:
    (first,) = await put(store, clock, new("one", b"1", words=("w",), due_ms=7))
    clock.advance(1)
    assert await put(store, clock, remove(first)) == []
    assert await find(store) == await find(store, word="w") == []
    assert (await store.due(10**12, 9, [KIND])).documents == []
    clock.advance(1)
    (second,) = await put(store, clock, new("one", b"1", words=("w",), due_ms=7))
    assert second.rev != first.rev
    assert await store.put([remove(first)], clock.now_ms()) == [PutRefused(second)]
    assert await find(store, word="w") == [second]


async def test_puts_are_independent_and_answered_in_their_order(
    store: Store, clock: VirtualClock
) -> None:
    (there,) = await put(store, clock, new("b", b"1"))
    (old,) = await put(store, clock, new("d", b"1", space="other"))
    now_ms = clock.now_ms()
    batch = [new("c"), new("b", b"2"), remove(old), new("a", kind="second")]
    answers = await store.put(batch, now_ms)
    assert answers == [PutDone(now_ms), PutRefused(there), PutDone(0), PutDone(now_ms)]
    assert [each.name for each in await find(store)] == ["b", "c"]
    assert await find(store, space="other") == []
    assert [each.name for each in await find(store, kind="second")] == ["a"]


async def test_many_documents_are_put_at_once(store: Store, clock: VirtualClock) -> None:
    puts = [new(f"n{n:04}", str(n).encode(), words=(f"w{n % 3}",)) for n in range(450)]
    made = await put(store, clock, *puts)
    assert await find(store, limit=1_000) == made
    assert await find(store, word="w1", limit=1_000) == made[1::3]


async def test_a_repeated_put_is_refused_with_what_it_wrote(
    store: Store, clock: VirtualClock
) -> None:
    first = new("one", b"1", words=("w",))
    (made,) = await put(store, clock, first)
    second = change(made, body=b"2", words=(), due_ms=4)
    for each in (first, second):
        await store.put([each], clock.now_ms())
        (answer,) = await store.put([each], clock.now_ms())
        assert isinstance(answer, PutRefused)
        assert was_done(each, answer)
    (now,) = await find(store)
    assert isinstance(now, Document)
    (first_answer,) = await store.put([remove(now)], clock.now_ms())
    (again,) = await store.put([remove(now)], clock.now_ms())
    assert was_done(remove(now), first_answer)
    assert was_done(remove(now), again)
    assert not was_done(second, again)


async def test_names_are_listed_as_bytes_page_by_page(store: Store, clock: VirtualClock) -> None:
    made = await put(store, clock, *(new(name, words=("w",)) for name in reversed(NAMES)))
    assert await find(store) == made[::-1]
    for word in ("", "w"):
        seen: list[AnyDocument] = []
        while page := await find(store, word=word, after=seen[-1].name if seen else "", limit=2):
            assert len(page) <= 2
            seen += page
        assert seen == made[::-1]
    assert await find(store, limit=0) == []


async def test_kinds_and_namespaces_are_apart(store: Store, clock: VirtualClock) -> None:
    """Also those whose names would be the same if they were written one after another."""
    places = [("a:b", "c"), ("a", "b:c"), ("a", "c"), ("b", "c")]
    for kind, space in places:
        await put(store, clock, new("n", kind.encode(), kind=kind, space=space, words=("w",)))
    for kind, space in places:
        for word in ("", "w"):
            (only,) = await find(store, kind, space, word=word)
            assert isinstance(only, Document)
            assert (only.kind, only.namespace, only.body) == (kind, space, kind.encode())


async def test_documents_are_found_by_the_words_that_they_have_now(
    store: Store, clock: VirtualClock
) -> None:
    one, two = await put(store, clock, new("1", words=("x", "y")), new("2", words=("y",)))
    assert await find(store, word="y") == [one, two]
    (other,) = await put(store, clock, change(one, body=b"", words=("y", "z"), due_ms=None))
    assert await find(store, word="x") == []
    assert await find(store, word="z") == [other]
    assert await find(store, word="y") == [other, two]
    (same,) = await put(store, clock, change(other, body=b"new", words=("y", "z"), due_ms=3))
    assert await find(store, word="y", after="1") == [two]
    assert await find(store, word="z") == [same]


async def test_documents_are_due_at_their_instant_soonest_first(
    store: Store, clock: VirtualClock
) -> None:
    now_ms = clock.now_ms()
    puts = [
        *(new(name, due_ms=now_ms + ms) for name, ms in (("c", 30), ("b", 10), ("a", 10))),
        new("a", space="first", due_ms=now_ms + 10),
        new("a", kind="zzz", due_ms=now_ms + 10),
        new("never"),
    ]
    made = await put(store, clock, *puts)
    kinds = ["zzz", KIND]
    assert await store.due(now_ms + 9, 9, kinds) == DueBatch([], now_ms + 10)
    due = await store.due(now_ms + 10, 9, kinds)
    assert due == DueBatch([], now_ms + 30, [made[2], made[1], made[3], made[4]])
    assert (await store.due(now_ms + 30, 3, kinds)).documents == due.documents[:3]
    assert (await store.due(now_ms + 30, 9, [KIND])).next_ms is None
    assert await store.due(now_ms + 30, 9, ["other"]) == DueBatch([], None)
    assert await store.due(now_ms + 30, 9) == DueBatch([], None)


async def test_executions_and_documents_are_due_side_by_side(
    store: Store, clock: VirtualClock
) -> None:
    now_ms = clock.now_ms()
    await submit(store, clock, order(0, delay_until_ms=now_ms + 20))
    await submit(store, clock, order(1, delay_until_ms=now_ms + 50))
    made = await put(store, clock, new("a", due_ms=now_ms + 10), new("b", due_ms=now_ms + 40))
    row = await head(store, execution_id(0))
    assert await store.due(now_ms, 5, [KIND]) == DueBatch([], now_ms + 10)
    assert await store.due(now_ms + 10, 5, [KIND]) == DueBatch([], now_ms + 20, made[:1])
    assert await store.due(now_ms + 20, 1, [KIND]) == DueBatch([row], now_ms + 40, made[:1])
    assert (await store.due(now_ms + 45, 5, [KIND])).next_ms == now_ms + 50


async def test_a_timer_that_was_moved_or_cleared_is_not_due(
    store: Store, clock: VirtualClock
) -> None:
    now_ms = clock.now_ms()
    one, two = await put(store, clock, new("1", due_ms=now_ms + 5), new("2", due_ms=now_ms + 5))
    (later,) = await put(store, clock, change(one, body=b"", words=(), due_ms=now_ms + 50))
    await put(store, clock, change(two, body=b"", words=(), due_ms=None))
    assert await store.due(now_ms + 5, 5, [KIND]) == DueBatch([], now_ms + 50)
    assert (await store.due(now_ms + 50, 5, [KIND])).documents == [later]
    (sooner,) = await put(store, clock, change(later, body=b"", words=(), due_ms=now_ms + 1))
    assert (await store.due(now_ms + 1, 5, [KIND])).documents == [sooner]


async def test_of_many_who_create_a_document_at_once_one_does(
    store: Store, clock: VirtualClock
) -> None:
    puts = [new("one", str(n).encode()) for n in range(8)]
    answers = await asyncio.gather(*(store.put([each], clock.now_ms()) for each in puts))
    (there,) = await find(store)
    assert isinstance(there, Document)
    told = [answer for (answer,) in answers]
    assert puts[told.index(PutDone(there.rev))].body == there.body
    assert told.count(PutRefused(there)) == 7


async def test_of_many_who_write_a_document_at_once_one_does(
    store: Store, clock: VirtualClock
) -> None:
    made = await put(store, clock, *(new(name) for name in "abc"))
    batches = [
        [change(each, body=f"{n}".encode(), words=(f"{n}",), due_ms=n) for each in order]
        for n, order in enumerate([made, made[::-1]] * 4)
    ]
    answers = await asyncio.gather(*(store.put(batch, clock.now_ms()) for batch in batches))
    done = [
        (put.name, put.body)
        for batch, told in zip(batches, answers, strict=True)
        for put, answer in zip(batch, told, strict=True)
        if isinstance(answer, PutDone)
    ]
    found = [each for each in await find(store) if isinstance(each, Document)]
    assert sorted(done, key=itemgetter(0)) == [(each.name, each.body) for each in found]
    for document in found:
        assert document in await find(store, word=document.words[0])


async def test_a_document_is_put_once_in_a_call(store: Store, clock: VirtualClock) -> None:
    with pytest.raises(IllegalTransition):
        await store.put([new("one"), new("two"), new("one")], clock.now_ms())
    assert await find(store) == []


async def test_a_clock_that_is_off_puts_no_document(store: Store, clock: VirtualClock) -> None:
    for puts in ([], [new("one")]):
        with pytest.raises(ClockSkew):
            await store.put(puts, clock.now_ms() + 501)
    assert await find(store) == []


async def test_a_put_hints_at_its_timer_unless_it_is_passing(
    store: Store, clock: VirtualClock
) -> None:
    heard: list[Hint] = []
    store.hints.subscribe(heard.append)
    puts = [new("a", due_ms=9), new("b", due_ms=4), new("c")]
    await store.put(puts, clock.now_ms(), passing=True)
    assert [hint.due_ms for hint in heard if not hint.foreign] == []
    await store.put([new("d", due_ms=9), new("e", due_ms=4)], clock.now_ms())
    assert [hint.due_ms for hint in heard if not hint.foreign] == [4]
