"""The limit writes what a store would have written; benches leave nothing behind."""

from pathlib import Path

import pytest

from flowfabric.cli.bench import cycle, limit
from flowfabric.cli.bench.cycles import BATCH, cycles_of
from flowfabric.cli.bench.targets import Target, open_target
from flowfabric.core.model import Feed, Want
from flowfabric.core.states import AttemptLifecycle, State
from flowfabric.store import Store, open_store
from flowfabric.store.upkeep import Upkeep
from tests.servers import DURABLE, store_url

N = BATCH + 7


@pytest.fixture(params=DURABLE)
def store_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_what_the_raw_client_wrote_is_a_finished_cycle_to_the_store(
    store: Store, store_kind: str, tmp_path: Path
) -> None:
    url = store_url(store_kind, tmp_path / "store.db")
    cycles = cycles_of(N)
    seconds = await limit.measure_of(Target(url, None).kind)(url, cycles)
    assert seconds > 0

    last = cycles[-1].ids[-1]
    (found,) = await store.load(Want(ids=[last], attempts=True))
    assert found is not None
    head, (attempt,) = found.head, found.attempts
    assert (head.state, head.rev, head.epoch, head.due_ms) == (State.COMPLETED, 3, 1, None)
    assert attempt.lifecycle is AttemptLifecycle.ENDED_SUCCESS
    lines = await store.tail(Feed(execution=last))
    assert [line.kind for line in lines] == ["submitted", "claimed", "completed"]
    assert isinstance(store, Upkeep)
    assert N in [part.rows for part in await store.sizes()]


async def test_the_store_beside_is_removed_and_the_named_one_is_not(
    store: Store, store_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda *_: "cafe")
    with open_target(store_url(store_kind, tmp_path / "store.db")) as target:
        assert await limit.run(target, 5) > 0
        beside = open_store(target.beside("limit-cafe"))
        assert isinstance(beside, Upkeep)
        assert await beside.sizes() == []
        await beside.close()
    assert isinstance(store, Upkeep)
    assert await store.unmigrated() == []


@pytest.mark.parametrize(
    "scheme", ["postgres", "postgresql", "valkey", "valkeys", "redis", "rediss", "valkeys+cluster"]
)
def test_what_is_beside_a_store_on_a_server_is_never_the_store_itself(scheme: str) -> None:
    target = Target(f"{scheme}://host", None)
    assert target.beside("limit-1").partition("?")[2] in (
        "schema=flowfabric_limit_1",
        "prefix=ff_limit_1",
    )


async def test_what_a_loaded_store_is_compared_with_is_removed(
    store: Store, store_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = store_url(store_kind, tmp_path / "store.db")
    monkeypatch.setattr("secrets.token_hex", lambda *_: "cafe")
    plan = cycle.Plan(n=5, preload=5)
    with open_target(url) as target:
        async with cycle._empty(target, plan) as empty:
            assert empty is not None
            assert (await cycle.end_to_end(empty, 5)).per_s > 0
            beside = open_store(target.beside("empty-cafe"))
            assert isinstance(beside, Upkeep)
            assert await beside.sizes() != []
        assert await beside.sizes() == []
        await beside.close()
    assert isinstance(store, Upkeep)
    assert await store.unmigrated() == []
