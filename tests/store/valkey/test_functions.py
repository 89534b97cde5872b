"""The library inside the server: loaded, found again when it is gone, and shared by versions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from flowfabric.core.lifecycle import complete
from flowfabric.core.model import Lease
from flowfabric.core.states import State
from flowfabric.errors import StoreMismatch
from flowfabric.store.valkey import ValkeyStore, claiming, library, writing
from flowfabric.store.valkey.calls import function
from flowfabric.store.valkey.library import (
    PROTOCOL,
    library_name,
    library_source,
    load_library,
)
from flowfabric.store.valkey.link import Reply
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import OTHER_TOKEN, ask, execution_id, order
from flowfabric.testing.conformance.steps import apply, contents, head, put, put_and_take, take
from tests.store.valkey.conftest import Opener
from tests.store.valkey.raw import ask as command
from tests.store.valkey.raw import ask_all

NEWER = PROTOCOL + 1


async def libraries(store: ValkeyStore) -> list[Reply]:
    return await ask_all(store, "FUNCTION", "LIST", "LIBRARYNAME", library_name(), "WITHCODE")


async def test_functions_that_are_gone_are_loaded_again(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    store = opener(url)
    await store.migrate()
    lease = await put_and_take(store, clock, order(0))
    await ask_all(store, "FUNCTION", "FLUSH")
    await apply(store, clock, complete(lease, clock.now_ms(), b"done"))
    await ask_all(store, "FUNCTION", "FLUSH")
    assert (await head(store, lease.id)).state is State.COMPLETED
    await ask_all(store, "FUNCTION", "FLUSH")
    spread = [order(n, id=execution_id(n, partition=n * 20)) for n in range(1, 9)]
    await put(store, clock, *spread)
    await ask_all(store, "FUNCTION", "FLUSH")
    assert len(await store.claim(ask(clock.now_ms(), limit=10, token=OTHER_TOKEN))) == 8


async def test_another_text_under_our_name_is_replaced_at_the_start(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    strange = (
        f"#!lua name={library_name()}\nredis.register_function('ff{PROTOCOL}_load', function() end)"
    )
    store = opener(url)
    await store.network.reach()
    await ask_all(store, "FUNCTION", "LOAD", "REPLACE", strange)
    await store.migrate()
    code = library_source().encode()
    for reply in await libraries(store):
        assert isinstance(reply, list)
        assert any(isinstance(entry, list) and code in entry for entry in reply)


async def test_two_versions_of_the_library_work_on_one_partition(
    url: str, opener: Opener, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each keeps the indexes as the other expects them: taken by one, ended by the other."""
    store = opener(url)
    await store.migrate()
    for place in store.network.places():
        await load_library(await store.network.link(place), place, protocol=NEWER)

    def speak(protocol: int) -> None:
        for module in (claiming, writing):
            monkeypatch.setattr(module, "function", partial(function, protocol=protocol))

    leases: list[Lease] = []
    for number, (inserts, claims) in enumerate(
        [(PROTOCOL, NEWER), (NEWER, PROTOCOL), (PROTOCOL, PROTOCOL), (NEWER, NEWER)]
    ):
        speak(inserts)
        await put(store, clock, order(number))
        speak(claims)
        leases.extend(await take(store, clock, token=f"token-{number}"))
    assert await store.claim(ask(clock.now_ms(), token=OTHER_TOKEN)) == []
    speak(NEWER)
    await apply(store, clock, *(complete(lease, clock.now_ms(), b"r") for lease in leases[:2]))
    speak(PROTOCOL)
    await apply(store, clock, *(complete(lease, clock.now_ms(), b"r") for lease in leases[2:]))
    found = await contents(store)
    assert [each.head.state for each in found.loaded if each] == [State.COMPLETED] * 4
    assert found.timers == []
    assert [event.kind for event in found.events].count("completed") == 4
    await ask_all(store, "FUNCTION", "DELETE", library_name(NEWER))


async def ask_for(store: ValkeyStore, protocol: int) -> None:
    """From now on the store is for programs of this protocol or newer ones."""
    meta = store.keys.shared("meta")
    await command(store, meta, "HSET", meta, "floor", protocol)


async def test_a_store_that_asks_for_a_newer_protocol_is_refused(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    store = opener(url)
    await store.migrate()
    await ask_for(store, NEWER)
    for verb in (opener(url).migrate, opener(url).unmigrated, opener(url).drop):
        with pytest.raises(StoreMismatch, match=f"protocol {NEWER}") as refused:
            await verb()
        assert refused.value.hint == "upgrade FlowFabric on this machine"
    await ask_for(store, PROTOCOL)


async def test_a_program_that_is_too_old_by_now_does_not_load_its_functions_again(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    store = opener(url)
    await store.migrate()
    await ask_for(store, NEWER)
    await put(store, clock, order(0))
    await ask_all(store, "FUNCTION", "FLUSH")
    with pytest.raises(StoreMismatch, match=f"protocol {NEWER}"):
        await put(store, clock, order(1))
    assert {str(reply) for reply in await libraries(store)} == {"[]"}
    await ask_for(store, PROTOCOL)


async def make_newer(store: ValkeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await ask_for(store, NEWER)


async def make_too_old(store: ValkeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "OLDEST", NEWER)


async def make_strange(store: ValkeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    meta = store.keys.shared("meta")
    await command(store, meta, "HDEL", meta, "protocol")


@pytest.mark.parametrize("make", [make_newer, make_too_old, make_strange])
async def test_a_start_that_is_refused_leaves_the_functions_of_the_server_as_they_were(
    url: str,
    opener: Opener,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[ValkeyStore, pytest.MonkeyPatch], Awaitable[None]],
) -> None:
    """A program of an older protocol that starts after an upgrade loads nothing."""
    store = opener(url)
    await store.migrate()
    await make(store, monkeypatch)
    await ask_all(store, "FUNCTION", "FLUSH")
    await ask_all(store, "FUNCTION", "LOAD", library_source(NEWER))
    before = await ask_all(store, "FUNCTION", "LIST", "WITHCODE")
    with pytest.raises(StoreMismatch):
        await opener(url).migrate()
    assert await ask_all(store, "FUNCTION", "LIST", "WITHCODE") == before
    await ask_all(store, "FUNCTION", "FLUSH")
    meta = store.keys.shared("meta")
    await command(store, meta, "HSET", meta, "floor", PROTOCOL, "protocol", PROTOCOL)


async def test_a_store_that_is_laid_out_in_an_older_way_is_refused_but_can_be_dropped(
    url: str, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opener(url)
    await store.migrate()
    monkeypatch.setattr(library, "OLDEST", NEWER)
    for verb in (opener(url).migrate, opener(url).unmigrated, opener(url).sizes):
        with pytest.raises(StoreMismatch, match=f"made with protocol {PROTOCOL}") as refused:
            await verb()
        assert "the FlowFabric that made it" in refused.value.hint
    await opener(url).drop()
    assert await opener(url).sizes() == []


async def test_keys_of_another_program_are_refused_and_left_alone(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    store = opener(url)
    await store.network.reach()
    meta = store.keys.shared("meta")
    await command(store, meta, "HSET", meta, "theirs", "1")
    for verb in (opener(url).migrate, opener(url).drop, opener(url).sizes):
        with pytest.raises(StoreMismatch, match="belong to another program"):
            await verb()
    assert await command(store, meta, "HGETALL", meta) == [b"theirs", b"1"]
    await command(store, meta, "UNLINK", meta)
