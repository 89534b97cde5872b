"""A reply that is lost on its way: the caller is told, and nothing is asked again behind its back.

Only the caller can tell its own write from a rival's, so only the caller may repeat it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from flowfabric.core.model import Feed
from flowfabric.core.operator import set_tags
from flowfabric.core.transition import Changeset, Transition
from flowfabric.errors import StoreUnavailable
from flowfabric.store import open_store
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.link import Link
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import order
from flowfabric.testing.conformance.steps import put
from tests.servers import store_url


@pytest.fixture(params=["valkey", "valkey-cluster"])
async def store(
    request: pytest.FixtureRequest, clock: VirtualClock, tmp_path: Path
) -> AsyncIterator[ValkeyStore]:
    store = open_store(store_url(str(request.param), tmp_path / "store"), clock=clock)
    assert isinstance(store, ValkeyStore)
    await store.migrate()
    yield store
    await store.drop()
    await store.close()


@pytest.fixture
def lose_one(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[bytes]]:
    """From when it is called, the next reply is lost, and its connection with it."""
    rightly = Link.data_received

    def begin() -> list[bytes]:
        lost: list[bytes] = []

        def received(link: Link, data: bytes) -> None:
            if lost:
                rightly(link, data)
                return
            lost.append(data)
            link.lose(StoreUnavailable("cut"))

        monkeypatch.setattr(Link, "data_received", received)
        return lost

    return begin


Write = Callable[[ValkeyStore, Transition, int], Awaitable[object]]
WRITES: dict[str, Write] = {
    "apply": lambda store, change, now_ms: store.apply([change], now_ms),
    "commit": lambda store, change, now_ms: store.commit(Changeset([change]), now_ms),
}


@pytest.mark.parametrize("verb", WRITES)
async def test_a_write_whose_reply_is_lost_is_not_asked_again(
    store: ValkeyStore, clock: VirtualClock, lose_one: Callable[[], list[bytes]], verb: str
) -> None:
    (row,) = await put(store, clock, order(0))
    now_ms = clock.now_ms()
    tagged = set_tags(row, now_ms, {"a.b": "c"})
    before = store.trips.count
    lost = lose_one()
    with pytest.raises(StoreUnavailable, match="cut") as told:
        await WRITES[verb](store, tagged, now_ms)
    assert told.value.retryable
    assert len(lost) == 1
    assert store.trips.count.since(before) == (1, 1)
    lines = await store.tail(Feed(execution=row.id))
    assert [line.kind for line in lines] == ["submitted", "tagged"]
