"""Entries in random histories: who appends them, what must be true of the answer and of all that
is kept.

The one rule: whoever holds a live lease writes each key once and reads back what was there, anybody
else writes nothing, and what is kept never changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from flowfabric.core.entries import Append, Appended, Entry, Kept
from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import Failure, complete, fail
from flowfabric.core.model import Lease
from flowfabric.core.transition import Applied, Changeset, Held, Rejected
from flowfabric.errors import FlowFabricError
from flowfabric.testing.driver import Driver, require
from flowfabric.testing.holding import NOTHING
from flowfabric.testing.picking import Pick, pick_lease
from flowfabric.testing.picture import Picture


async def append(driver: Driver, picks: Sequence[Pick], entries: Sequence[Entry]) -> object:
    """One call about several executions, each shown a lease; the row is written by none."""
    found = [await pick_lease(driver, pick, started=None) for pick in picks]
    leases = {lease.id: lease for lease in found if lease is not None}
    if not leases:
        return NOTHING
    before, now_ms = driver.picture, driver.clock.now_ms()
    batch = [Append(lease.id, _held(lease), tuple(entries)) for lease in leases.values()]
    told = await driver.do(lambda: driver.store.append(batch, now_ms), writes=0)
    if isinstance(told, FlowFabricError):
        raise told
    for answer in told:
        if driver.is_live(leases[answer.id]):
            _require_written(driver, before, answer, entries)
        else:
            require(isinstance(answer, Rejected), f"{leases[answer.id]} is dead and wrote")
            is_same = before.entries[answer.id] == driver.picture.entries[answer.id]
            require(is_same, f"{answer.id} was refused and has other entries")
    return [_plain(answer) for answer in told]


def _held(lease: Lease) -> Held:
    return Held(lease.epoch, lease.token, started=lease.started)


def _require_written(
    driver: Driver, before: Picture, answer: Appended | Rejected, entries: Sequence[Entry]
) -> None:
    if isinstance(answer, Rejected):
        raise AssertionError(f"the holder of {answer.id} hears a refusal")
    row = driver.head(answer.id)
    known = _counting(before, answer.id, row.generation)
    there = [known[place] for each in entries if (place := (each.topic, each.key)) in known]
    require(list(answer.there) == there, f"{answer.there} was there, not {there}")
    now = _counting(driver.picture, answer.id, row.generation)
    missing = [each for each in entries if (each.topic, each.key) not in now]
    require(not missing, f"{missing} was written and is not there")


def _counting(picture: Picture, id: ExecutionId, generation: int) -> dict[tuple[str, str], Kept]:
    kept = picture.entries.get(id, [])
    return {(each.topic, each.key): each for each in kept if each.generation == generation}


def _plain(answer: Appended | Rejected) -> object:
    """Rows hold tokens, which differ from store to store."""
    if isinstance(answer, Rejected):
        return "refused"
    return answer.there


async def end_with(driver: Driver, pick: Pick, entries: Sequence[Entry], *, whole: bool) -> object:
    """An attempt that ends, with entries: they are written if the lease is good."""
    lease = await pick_lease(driver, pick)
    if lease is None or not lease.started:
        return NOTHING
    before, now_ms = driver.picture, driver.clock.now_ms()
    is_live = driver.is_live(lease)
    decision = complete(lease, now_ms, b"") if whole else fail(lease, now_ms, Failure("broke"))
    carrying = msgspec.structs.replace(decision, entries=tuple(entries))

    async def write() -> bool:
        if whole:
            return await driver.store.commit(Changeset([carrying]), now_ms)
        return isinstance((await driver.store.apply([carrying], now_ms))[0], Applied)

    done = await driver.do(write, writes=1 if is_live else 0)
    require(done is is_live, f"{lease} is alive: {is_live}, and ended it: {done}")
    if is_live:
        answer = Appended(lease.id, tuple(_there(before, driver, lease, entries)))
        _require_written(driver, before, answer, entries)
    return done


def _there(
    before: Picture, driver: Driver, lease: Lease, entries: Sequence[Entry]
) -> Iterator[Kept]:
    known = _counting(before, lease.id, driver.head(lease.id).generation)
    for each in entries:
        if (each.topic, each.key) in known:
            yield known[each.topic, each.key]
