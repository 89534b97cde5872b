"""A slot on its way from one node to another: a call happens whole, or not at all."""

from __future__ import annotations

import pytest

from flowfabric.core.lifecycle import complete
from flowfabric.core.model import Feed, Query, Want
from flowfabric.errors import StoreUnavailable
from flowfabric.store.valkey import ValkeyStore, calls
from flowfabric.store.valkey.slots import slot_of
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import OTHER_TOKEN, ask, execution_id, order, submissions
from flowfabric.testing.conformance.steps import apply, contents, put, take
from flowfabric.testing.servers import ValkeyCluster, ValkeyServer
from tests.store.valkey.conftest import Opener
from tests.store.valkey.raw import keys


class Move:
    """One slot, moved by hand as `valkey-cli --cluster reshard` does."""

    def __init__(self, cluster: ValkeyCluster, slot: int, port: int) -> None:
        self.slot = str(slot)
        self.source = next(node for node in cluster.nodes if node.port == port)
        self.target = next(node for node in cluster.nodes if node.port != port)
        self._nodes = cluster.nodes

    def begin(self) -> None:
        with self.source.talk() as source, self.target.talk() as target:
            ids = [talk.ask("CLUSTER", "MYID") for talk in (source, target)]
            target.ask("CLUSTER", "SETSLOT", self.slot, "IMPORTING", ids[0])
            source.ask("CLUSTER", "SETSLOT", self.slot, "MIGRATING", ids[1])

    def move(self, *names: str) -> None:
        where = ("127.0.0.1", str(self.target.port), "", "0", "5000")
        with self.source.talk() as source:
            for name in names:
                source.ask("MIGRATE", *where, "AUTH", self.target.password, "KEYS", name)

    def finish(self) -> None:
        with self.target.talk() as talk:
            mine = talk.ask("CLUSTER", "MYID")
        for node in [self.target, *(each for each in self._nodes if each is not self.target)]:
            self._give(node, mine)

    def _give(self, node: ValkeyServer, owner: str) -> None:
        with node.talk() as talk:
            talk.ask("CLUSTER", "SETSLOT", self.slot, "NODE", owner)


async def moving(store: ValkeyStore, cluster: ValkeyCluster) -> Move:
    scope = store.keys.partition(7)
    return Move(cluster, slot_of(scope), store.network.place(scope).port)


async def names(store: ValkeyStore) -> list[str]:
    """The keys of the partition, its own record first: then calls are sent on to the target."""
    scope = store.keys.partition(7)
    found = await keys(store, f"{store.address.prefix}:*")
    return sorted(name for name in found if name.startswith(scope))


@pytest.mark.parametrize("moved", ["none", "record", "half"])
async def test_nothing_is_half_written_while_a_slot_is_on_its_way(
    opener: Opener, cluster: ValkeyCluster, clock: VirtualClock, moved: str
) -> None:
    """Keys that do not exist yet raise in the middle of a function, unless it looked before."""
    store, hasty = opener(cluster.url), opener(cluster.url, more="&timeout=0.2")
    await store.migrate()
    await hasty.migrate()
    await put(store, clock, *(order(n, tags={"a.b": "c"}) for n in range(6)))
    leases = await take(store, clock, 3)
    before = await contents(store)
    move = await moving(store, cluster)
    mine = await names(store)
    move.begin()
    move.move(*{"none": [], "record": mine[:1], "half": mine[: len(mine) // 2]}[moved])
    now_ms = clock.now_ms()
    for write in (
        hasty.apply([complete(lease, now_ms, b"result") for lease in leases], now_ms),
        hasty.insert(submissions([order(10, key="k"), order(11)], now_ms), now_ms),
        hasty.claim(ask(now_ms, token=OTHER_TOKEN, only=execution_id(4))),
    ):
        with pytest.raises(StoreUnavailable, match="refused") as refused:
            await write
        assert "slots are being moved" in refused.value.hint
    with pytest.raises(StoreUnavailable):
        await hasty.load(Want(ids=[execution_id(0)]))
    move.move(*[name for name in mine if name not in _gone(move, mine)])
    move.finish()

    assert await contents(store) == before
    await apply(store, clock, *(complete(lease, now_ms, b"result") for lease in leases))
    await put(store, clock, order(10, key="k"), order(11))
    assert len(await store.find(Query(limit=100))) == 8
    assert len(await store.tail(Feed())) == 6 + 3 + 3 + 2


def _gone(move: Move, names: list[str]) -> set[str]:
    """What the source does not have any more."""
    with move.target.talk() as talk:
        there: set[str] = set()
        for name in names:
            talk.ask("ASKING")
            if talk.ask("EXISTS", name) == "1":
                there.add(name)
    return there


async def test_a_call_waits_until_the_slot_has_arrived(
    opener: Opener,
    cluster: ValkeyCluster,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody has to do anything about it: the same call goes to where the slot is then."""
    store, patient = opener(cluster.url), opener(cluster.url, more="&timeout=30")
    await store.migrate()
    await patient.migrate()
    await put(store, clock, *(order(n) for n in range(4)))
    leases = await take(store, clock, 4)
    move = await moving(store, cluster)
    mine = await names(store)
    move.begin()
    move.move(*mine[:3])
    refusals: list[str] = []
    pause = calls.Patience.pause

    async def arrive(patience: calls.Patience) -> None:
        """In the first pause that the refused call makes, the rest of the slot arrives."""
        if not refusals:
            move.move(*mine[3:])
            move.finish()
        refusals.append("refused")
        await pause(patience)

    monkeypatch.setattr(calls.Patience, "pause", arrive)
    await apply(patient, clock, *(complete(lease, clock.now_ms(), b"r") for lease in leases))
    assert refusals
    ended = await patient.endings([lease.id for lease in leases])
    assert [each.result for each in ended if each] == [b"r"] * 4
