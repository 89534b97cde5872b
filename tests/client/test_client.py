"""Submissions are joined, repeatable, and numbered so that few calls carry many."""

from __future__ import annotations

import asyncio
from itertools import groupby

import pytest

from flowfabric import App, StoreUnavailable
from flowfabric.client.client import RANDOM_BYTES, Chance, Request
from flowfabric.core.ids import (
    Namespace,
    PartitionCounts,
    key_partition,
    parse_execution_id,
    partition_of,
)
from flowfabric.store import open_store
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb
from tests.app.stage import written


def make(faulty: FaultyStore) -> App:
    app = App(store=faulty)

    @app.task
    async def work(n: int) -> int:
        return n

    return app


@pytest.fixture
def faulty() -> FaultyStore:
    return FaultyStore(open_store("memory://"))


async def start(app: App, n: int, key: str | None = None) -> str:
    client = await app.connect()
    handler = app._handlers["work"]
    request = Request(kind="work", payload=handler.encode_call((n,), {}), lane="default", key=key)
    return (await client.start(request, handler.result.decode)).id


async def test_starts_at_the_same_time_share_calls(faulty: FaultyStore) -> None:
    app = make(faulty)
    await app.connect()
    ids = await asyncio.gather(*(start(app, n) for n in range(400)))
    assert len(set(ids)) == 400
    assert faulty.calls[Verb.INSERT] < 10


@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.AFTER])
async def test_a_lost_reply_to_a_start_makes_no_second_execution(
    faulty: FaultyStore, kind: Kind
) -> None:
    app = make(faulty)
    faulty.plan.append(Fault(Verb.INSERT, 1, kind, times=2))
    id = await start(app, 1)
    assert await written(app) == (1, 1)
    assert (await app.handle(id).status()).public_state == "waiting"


async def test_a_start_that_never_was_answered_can_be_made_again_by_its_key(
    faulty: FaultyStore,
) -> None:
    app = make(faulty)
    faulty.plan.append(Fault(Verb.INSERT, 1, Kind.AFTER, times=3))
    with pytest.raises(StoreUnavailable):
        await start(app, 1, key="order-1")
    again = await start(app, 1, key="order-1")
    assert await written(app) == (1, 1)
    assert (await app.handle(again).status()).public_state == "waiting"


async def test_one_failed_call_fails_only_who_was_in_it(faulty: FaultyStore) -> None:
    app = make(faulty)
    faulty.plan.append(Fault(Verb.INSERT, 1, Kind.BEFORE, times=3))
    with pytest.raises(StoreUnavailable):
        await start(app, 1)
    assert await start(app, 2)
    assert (await written(app))[0] == 1


@pytest.mark.case("PA-005")
async def test_a_key_decides_its_partition(faulty: FaultyStore) -> None:
    app = make(faulty)
    first, second = await start(app, 1, key="k"), await start(make(faulty), 1, key="k")
    assert first == second
    expected = key_partition(Namespace("default"), "k", PartitionCounts())
    assert partition_of(parse_execution_id(first)) == expected == 127


@pytest.mark.case("PA-005")
async def test_without_a_key_runs_of_a_hundred_share_a_partition(faulty: FaultyStore) -> None:
    app = make(faulty)
    places = [partition_of(parse_execution_id(await start(app, n))) for n in range(250)]
    runs = [(place, len(list(run))) for place, run in groupby(places)]
    assert [count for _, count in runs] == [99, 100, 51]
    assert [(place - places[0]) % 256 for place, _ in runs] == [0, 1, 2]


async def test_a_caller_that_gives_up_waiting_spoils_no_other(faulty: FaultyStore) -> None:
    app = make(faulty)
    await app.connect()
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def slowly() -> None:
        reached.set()
        await go_on.wait()

    faulty.plan.append(Fault(Verb.INSERT, 1, Kind.DELAY, hook=slowly))
    calls = [asyncio.create_task(start(app, n)) for n in range(3)]
    await reached.wait()
    calls[1].cancel()
    go_on.set()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(answers[1], asyncio.CancelledError)
    assert isinstance(answers[0], str)
    assert isinstance(answers[2], str)


async def test_closing_answers_what_was_submitted(faulty: FaultyStore) -> None:
    app = make(faulty)
    await app.connect()
    call = asyncio.create_task(start(app, 1))
    await asyncio.sleep(0)
    await app.close()
    assert await call
    assert (await written(app))[0] == 1


def test_chance_gives_the_bits_that_an_id_needs() -> None:
    chance = Chance()
    seen = {chance.bits() for _ in range(2_000)}
    assert len(seen) == 2_000
    assert max(seen).bit_length() <= 74
    assert min(value.bit_length() for value in seen) > 40
    assert RANDOM_BYTES == 10
