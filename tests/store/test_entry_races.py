"""Entries against whoever takes the lease away, with real concurrency: a late write and a reclaim
cannot both win."""

from __future__ import annotations

import asyncio

from flowfabric.core.entries import Append, Appended, Entry, Kept, Topic
from flowfabric.core.ids import ExecutionId
from flowfabric.core.operator import revoke
from flowfabric.core.transition import Held, Transition
from flowfabric.store import Store
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import execution_id, order
from flowfabric.testing.conformance.steps import TOPIC, apply, in_threads, put, take

EXECUTIONS = 40


async def test_what_is_read_after_a_lease_was_taken_away_is_all_there_will_be(
    store: Store, clock: VirtualClock, contenders: list[Store]
) -> None:
    ids = [execution_id(number, partition=number % 4) for number in range(EXECUTIONS)]
    await put(store, clock, *(order(id=id) for id in ids))
    leases = {lease.id: lease for lease in await take(store, clock, EXECUTIONS)}
    seen: dict[ExecutionId, list[Kept]] = {}
    acknowledged: dict[ExecutionId, list[str]] = {id: [] for id in ids}

    async def append_until_refused(writer: Store) -> None:
        held, number = set(ids), 0
        while held:
            number += 1
            entry = Entry(TOPIC, f"{number:06}", b"late")
            batch = [
                Append(id, Held(leases[id].epoch, leases[id].token), (entry,))
                for id in sorted(held)
            ]
            for answer in await writer.append(batch, clock.now_ms()):
                if isinstance(answer, Appended):
                    acknowledged[answer.id].append(entry.key)
                else:
                    held.discard(answer.id)

    async def revoke_all(taker: Store) -> None:
        for id in ids:
            decision = revoke(leases[id].head, clock.now_ms(), "taken away")
            assert isinstance(decision, Transition)
            # Only a decision that raises the revision can be in the way; an append does not.
            await apply(taker, clock, decision)
            seen[id] = (await taker.entries([Topic(id, TOPIC, limit=1_000_000)]))[0]

    async def run(number: int) -> None:
        await (append_until_refused if number else revoke_all)(contenders[number])

    await asyncio.to_thread(in_threads, 2, run)
    found = await store.entries([Topic(id, TOPIC, limit=1_000_000) for id in ids])
    assert found == [seen[id] for id in ids]
    assert [[each.key for each in kept] for kept in found] == [acknowledged[id] for id in ids]


async def test_two_calls_of_one_holder_write_each_key_once(
    store: Store, clock: VirtualClock, contenders: list[Store]
) -> None:
    await put(store, clock, *(order(number) for number in range(10)))
    leases = await take(store, clock, 10)
    keys = [f"{number:03}" for number in range(60)]
    written: list[list[tuple[ExecutionId, str]]] = [[], []]

    async def run(number: int) -> None:
        """One from the first key on, one from the last: they meet in the middle."""
        for key in keys if number else reversed(keys):
            entry = Entry(TOPIC, key, f"of {number}".encode())
            batch = [Append(each.id, Held(each.epoch, each.token), (entry,)) for each in leases]
            for answer in await contenders[number].append(batch, clock.now_ms()):
                assert isinstance(answer, Appended)
                if not answer.there:
                    written[number].append((answer.id, key))
                else:
                    assert answer.there[0].key == key

    await asyncio.to_thread(in_threads, 2, run)
    assert sorted(written[0] + written[1]) == sorted(
        (each.id, key) for each in leases for key in keys
    )
    for lease in leases:
        (found,) = await store.entries([Topic(lease.id, TOPIC)])
        bodies = {each.key: each.body for each in found}
        assert bodies == {
            key: f"of {number}".encode()
            for number in (0, 1)
            for id, key in written[number]
            if id == lease.id
        }
