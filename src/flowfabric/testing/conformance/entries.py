"""Entries: written once under the lease of their execution, and read in the order of their keys.
Topics are made up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flowfabric.core.entries import Append, Appended, Entry, Kept, Topic
from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import renew
from flowfabric.core.model import Lease
from flowfabric.core.operator import revoke
from flowfabric.core.timers import on_due
from flowfabric.core.transition import Held, Rejected, Transition
from flowfabric.errors import IllegalTransition, InvalidInput, PayloadTooLarge
from flowfabric.store.protocol import Store
from flowfabric.testing.build import OTHER_TOKEN, TTL_MS, execution_id, order, policy
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import (
    TOPIC,
    Corrupter,
    apply,
    contents,
    head,
    put,
    put_and_take,
    take,
)

# As texts some of these would sort in another way, or be taken for the same.
KEYS: tuple[str, ...] = ("\x01", " ", "1", "10", "2", "A", "a", "a\x01", "a ", "a:b", "aa", "b")
KEYS += ("ä", "é", "e\u0301", "\uffee", "\U0001f600", "x" * 512)
BODIES = (b"", b"\0", b"\xff\xfe", b"text", bytes(range(256)), b"x" * 4096)


entry_of: Callable[..., Entry] = Entry
topic_of: Callable[..., Topic] = Topic


def held(lease: Lease) -> Held:
    return Held(lease.epoch, lease.token)


def append_of(lease: Lease, *entries: Entry) -> Append:
    return Append(lease.id, held(lease), entries)


def named(*keys: str, topic: str = TOPIC) -> tuple[Entry, ...]:
    return tuple(Entry(topic, key, key.encode(), n) for n, key in enumerate(keys))


def kept(entry: Entry, *, generation: int = 0, epoch: int = 1) -> Kept:
    return Kept(entry.topic, entry.key, entry.body, generation, epoch, entry.n)


async def write(store: Store, clock: VirtualClock, *batch: Append) -> None:
    """Append these; every lease must be good and every key new."""
    answers = await store.append(batch, clock.now_ms())
    assert answers == [Appended(append.id) for append in batch]


async def keys_of(store: Store, id: ExecutionId, topic: str = TOPIC) -> list[str]:
    return [each.key for each in (await store.entries([Topic(id, topic)]))[0]]


async def test_entries_are_read_in_the_order_of_their_keys_as_bytes(
    store: Store, clock: VirtualClock
) -> None:
    lease = await put_and_take(store, clock, order(0))
    entries = named(*reversed(KEYS))
    await write(store, clock, append_of(lease, *entries))
    in_order = sorted(entries, key=lambda entry: entry.key.encode())
    assert await store.entries([Topic(lease.id, "notes")]) == [[kept(each) for each in in_order]]


async def test_bodies_come_back_as_they_were(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0))
    entries = [Entry("bodies", str(n), body) for n, body in enumerate(BODIES)]
    await write(store, clock, append_of(lease, *entries))
    assert await store.entries([Topic(lease.id, "bodies")]) == [[kept(each) for each in entries]]


async def test_the_largest_body_that_is_allowed_is_kept(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0))
    largest = Entry("bodies", "largest", bytes(range(256)) * 4096)
    await write(store, clock, append_of(lease, largest))
    assert await store.entries([Topic(lease.id, "bodies")]) == [[kept(largest)]]


async def test_an_append_changes_neither_the_row_nor_the_log(
    store: Store, clock: VirtualClock
) -> None:
    lease = await put_and_take(store, clock, order(0))
    before = await contents(store)
    await write(store, clock, append_of(lease, *named("a")))
    after = await contents(store)
    assert after.entries != before.entries
    assert after._replace(entries=before.entries) == before
    assert await head(store, lease.id) == lease.head


async def test_pages_follow_one_another_and_topics_do_not_mix(
    store: Store, clock: VirtualClock
) -> None:
    lease = await put_and_take(store, clock, order(0))
    entries = [*named(*"abcde"), *named(*"bxy", topic="note"), *named(*"az", topic="notes:")]
    await write(store, clock, append_of(lease, *entries))
    asks = [
        Topic(lease.id, "notes", limit=2),
        Topic(lease.id, "notes", after="b", limit=2),
        Topic(lease.id, "notes", after="d", limit=2),
        Topic(lease.id, "notes", after="e"),
        Topic(lease.id, "notes", after="bb", limit=1),
        Topic(lease.id, "note"),
        Topic(lease.id, "notes:"),
        Topic(lease.id, "other"),
    ]
    found = [[each.key for each in page] for page in await store.entries(asks)]
    assert found == [[*"ab"], [*"cd"], ["e"], [], ["c"], [*"bxy"], [*"az"], []]


async def test_many_executions_are_written_and_read_at_once(
    store: Store, clock: VirtualClock
) -> None:
    ids = [execution_id(n, partition=n % 5) for n in range(60)]
    await put(store, clock, *(order(id=id) for id in ids))
    leases = await take(store, clock, len(ids))
    batch = [append_of(lease, *named("k", lease.id)) for lease in leases]
    await write(store, clock, *batch)
    found = await store.entries([Topic(id, "notes") for id in reversed(ids)])
    # The key that is an id begins with a brace, which sorts behind letters.
    assert found == [[kept(each) for each in named("k", id)] for id in reversed(ids)]


async def test_nothing_is_read_of_who_is_not_there(store: Store) -> None:
    assert await store.entries([Topic(execution_id(99), "notes")]) == [[]]
    assert await store.entries([]) == []


async def test_a_key_that_is_there_is_answered_with_what_is_there(
    store: Store, clock: VirtualClock
) -> None:
    lease = await put_and_take(store, clock, order(0))
    first = Entry("steps", "b", b"first", 7)
    await write(store, clock, append_of(lease, first))
    again = [Entry("steps", "c", b"new"), Entry("steps", "b", b"second"), Entry("steps", "a", b"")]
    answers = await store.append([append_of(lease, *again)], clock.now_ms())
    assert answers == [Appended(lease.id, (kept(first),))]
    found = (await store.entries([Topic(lease.id, "steps")]))[0]
    assert found == [kept(again[2]), kept(first), kept(again[0])]


async def test_an_append_can_be_repeated(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0))
    other = await put_and_take(store, clock, order(1))
    batch = [append_of(lease, *named("b", "a")), append_of(other, *named("a"))]
    await write(store, clock, *batch)
    answers = await store.append(batch, clock.now_ms())
    assert answers == [
        Appended(append.id, tuple(kept(each) for each in append.entries)) for append in batch
    ]


async def test_the_same_key_of_another_execution_or_topic_is_another(
    store: Store, clock: VirtualClock
) -> None:
    lease = await put_and_take(store, clock, order(0))
    other = await put_and_take(store, clock, order(1))
    await write(store, clock, append_of(lease, *named("a"), *named("a", topic="others")))
    await write(store, clock, append_of(other, *named("a")))


WRONG: dict[str, Held] = {
    "an older epoch": Held(0, "token-1"),
    "a newer epoch": Held(2, "token-1"),
    "another token": Held(1, "token-2"),
    "a token that only begins alike": Held(1, "token-"),
    "a grant": Held(1, "token-1", started=False),
}


@pytest.mark.parametrize("guard", WRONG.values(), ids=WRONG.keys())
async def test_a_wrong_lease_writes_no_entry(
    store: Store, clock: VirtualClock, guard: Held
) -> None:
    lease = await put_and_take(store, clock, order(0))
    answers = await store.append([Append(lease.id, guard, named("a"))], clock.now_ms())
    assert answers == [Rejected(lease.id, lease.head)]
    assert await keys_of(store, lease.id) == []


async def test_a_lease_that_is_over_writes_no_entry(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0))
    clock.advance(TTL_MS - 1)
    await write(store, clock, append_of(lease, *named("a")))
    clock.advance(1)
    answers = await store.append([append_of(lease, *named("b"))], clock.now_ms())
    assert answers == [Rejected(lease.id, lease.head)]
    assert await keys_of(store, lease.id) == ["a"]


async def test_a_refused_append_says_nothing_about_keys_that_are_there(
    store: Store, clock: VirtualClock
) -> None:
    """The lease is judged first: whoever lost it is told that, and nothing else."""
    lease = await put_and_take(store, clock, order(0))
    await write(store, clock, append_of(lease, *named("a")))
    decision = revoke(lease.head, clock.now_ms(), "late")
    assert isinstance(decision, Transition)
    await apply(store, clock, decision)
    current = await head(store, lease.id)
    answers = await store.append([append_of(lease, *named("a", "b"))], clock.now_ms())
    assert answers == [Rejected(lease.id, current)]
    assert await keys_of(store, lease.id) == ["a"]


async def test_a_refused_append_spoils_no_other(store: Store, clock: VirtualClock) -> None:
    good = await put_and_take(store, clock, order(0))
    bad = await put_and_take(store, clock, order(1))
    absent = execution_id(2)
    batch = [
        Append(absent, Held(1, "token-1"), named("a")),
        Append(bad.id, Held(1, OTHER_TOKEN), named("a")),
        append_of(good, *named("a")),
    ]
    answers = await store.append(batch, clock.now_ms())
    assert answers == [Rejected(absent, None), Rejected(bad.id, bad.head), Appended(good.id)]
    assert await keys_of(store, good.id) == ["a"]
    assert await keys_of(store, bad.id) == []


async def test_a_row_that_cannot_be_read_takes_no_entry_and_keeps_no_other_back(
    store: Store, clock: VirtualClock, corrupter: Corrupter
) -> None:
    good = await put_and_take(store, clock, order(0))
    bad = await put_and_take(store, clock, order(1))
    await corrupter(bad.id)
    batch = [append_of(bad, *named("a")), append_of(good, *named("a"))]
    answers = await store.append(batch, clock.now_ms())
    assert answers == [Rejected(bad.id, None), Appended(good.id)]


async def test_whoever_takes_over_reads_what_was_left_and_orders_his_own_behind_it(
    store: Store, clock: VirtualClock
) -> None:
    lease = await put_and_take(store, clock, order(0, policy=policy(reclaims=5)))
    first = Entry("steps", "b", b"1", 3)
    await write(store, clock, append_of(lease, first))
    clock.advance(TTL_MS)
    lost = on_due(await head(store, lease.id), clock.now_ms()).transition
    assert lost is not None
    await apply(store, clock, lost)
    (again,) = await take(store, clock, token=OTHER_TOKEN)
    second = Entry("steps", "a", b"2", 0)
    await write(store, clock, append_of(again, second))
    found = (await store.entries([Topic(lease.id, "steps")]))[0]
    assert found == [kept(second, epoch=again.epoch), kept(first, epoch=lease.epoch)]
    assert (again.epoch, 0) > (lease.epoch, 3)


async def test_a_renewed_lease_goes_on_writing(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0))
    await apply(store, clock, renew(lease, clock.now_ms(), TTL_MS))
    clock.advance(TTL_MS - 1)
    await write(store, clock, append_of(lease, *named("a")))


@pytest.mark.parametrize(
    ("field", "cells"),
    [
        ("topic", ("", "key", b"")),
        ("topic", ("two words", "key", b"")),
        ("topic", ("x" * 65, "key", b"")),
        ("topic", ("a\0b", "key", b"")),
        ("topic", (7, "key", b"")),
        ("key", ("topic", "", b"")),
        ("key", ("topic", "a\0b", b"")),
        ("key", ("topic", "\ud800", b"")),
        ("key", ("topic", "ä" * 257, b"")),
        ("body", ("topic", "key", "text")),
        ("n", ("topic", "key", b"", -1)),
        ("n", ("topic", "key", b"", 1.0)),
        ("n", ("topic", "key", b"", 1 << 53)),
    ],
)
def test_what_no_store_could_keep_is_refused_by_its_name(
    field: str, cells: tuple[object, ...]
) -> None:
    with pytest.raises(InvalidInput) as refused:
        entry_of(*cells)
    assert refused.value.field == field
    assert refused.value.hint


@pytest.mark.parametrize(
    ("field", "ask"),
    [
        ("topic", {"topic": "two words"}),
        ("after", {"after": "a\0b"}),
        ("after", {"after": "x" * 513}),
        ("limit", {"limit": 0}),
        ("limit", {"limit": 2.5}),
        ("generation", {"generation": -1}),
    ],
)
def test_what_no_store_could_look_for_is_refused_by_its_name(
    field: str, ask: dict[str, object]
) -> None:
    with pytest.raises(InvalidInput) as refused:
        topic_of(execution_id(0), **{"topic": TOPIC, **ask})
    assert refused.value.field == field
    assert refused.value.hint


def test_a_body_over_the_limit_is_refused() -> None:
    Entry("topic", "key", bytes(1 << 20))
    with pytest.raises(PayloadTooLarge, match="1048577 bytes"):
        Entry("topic", "key", bytes((1 << 20) + 1))


def test_two_entries_of_one_key_in_one_call_are_refused() -> None:
    twice = (Entry("notes", "a", b"1"), Entry("notes", "a", b"2"))
    with pytest.raises(IllegalTransition, match="two entries of notes under a"):
        Append(execution_id(0), Held(1, "token"), twice)
    with pytest.raises(InvalidInput, match="no entries"):
        Append(execution_id(0), Held(1, "token"), ())


async def test_two_appends_to_one_execution_in_one_call_are_refused(
    store: Store, clock: VirtualClock
) -> None:
    lease = await put_and_take(store, clock, order(0))
    batch = [append_of(lease, *named("a")), append_of(lease, *named("b"))]
    with pytest.raises(IllegalTransition):
        await store.append(batch, clock.now_ms())
    assert await keys_of(store, lease.id) == []
