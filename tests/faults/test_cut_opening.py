"""Opening a store while its server is in passing trouble: waited for, within a bound."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowfabric.errors import StoreUnavailable
from flowfabric.store import open_store
from flowfabric.store.postgres import store as postgres_store
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import order
from flowfabric.testing.conformance.steps import put
from tests.conftest import discard
from tests.faults.proxy import Proxy, proxy_of
from tests.servers import store_url
from tests.store.valkey.raw import ask_all

PASSING = ("READONLY", "MOVED 1 127.0.0.1:1", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN")
# The steps of opening: greeting, looking for the functions, loading them, setting up.
STEPS = (b"INFO", b"LIBRARYNAME", b"LOAD", b"_setup")


@pytest.fixture(params=["postgres", "valkey"])
async def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def proxy(kind: str, tmp_path: Path) -> AsyncIterator[Proxy]:
    url = store_url(kind, tmp_path / "store", is_new=True)
    async with proxy_of(url) as proxy:
        yield proxy
    await discard(open_store(url))


@pytest.mark.parametrize("answer", range(1, 15))
async def test_a_connection_that_is_cut_while_opening_is_opened_again(
    proxy: Proxy, answer: int
) -> None:
    """At every answer that opening needs; some have fewer."""
    clock = VirtualClock()
    store = open_store(proxy.url, clock=clock)
    proxy.cut_at(answer)
    await store.migrate()
    proxy.cut_at(0)
    await put(store, clock, order(0))
    await store.close()


@pytest.mark.parametrize("kind", ["valkey"], indirect=True)
@pytest.mark.parametrize("refusal", PASSING)
@pytest.mark.parametrize("step", STEPS, ids=bytes.decode)
async def test_a_refusal_that_passes_is_waited_for(proxy: Proxy, step: bytes, refusal: str) -> None:
    clock = VirtualClock()
    store = open_store(proxy.url, clock=clock)
    await store.network.reach()  # type: ignore[attr-defined]
    await ask_all(store, "FUNCTION", "FLUSH")  # type: ignore[arg-type]
    await store.close()
    many = 3 if step == b"INFO" else 1
    proxy.refuse(step, f"-{refusal} passing\r\n".encode() * many)
    await store.migrate()
    assert proxy.is_done
    await put(store, clock, order(0))
    await store.close()


async def test_a_server_that_cuts_every_connection_is_given_up(
    proxy: Proxy, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "PATIENCE_SECONDS", 0.2)
    more = "&timeout=0.2" if kind == "valkey" else ""
    store = open_store(proxy.url + more)
    proxy.cut_always()
    with pytest.raises(StoreUnavailable):
        await store.migrate()
    assert proxy.cuts > 1
    await store.close()
