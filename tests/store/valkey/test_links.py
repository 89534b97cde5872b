"""Connections: many callers on one, large and binary bodies, lost replies, loops that end."""

from __future__ import annotations

import asyncio
import os

import pytest

from flowfabric.core.model import Want
from flowfabric.errors import StoreUnavailable
from flowfabric.store.valkey.address import Address, Place
from flowfabric.store.valkey.calls import command
from flowfabric.store.valkey.connecting import connect
from flowfabric.store.valkey.link import Link, pack
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import ask, execution_id, order
from flowfabric.testing.conformance.steps import put
from flowfabric.testing.servers import ValkeyServer, valkey_server
from tests.store.valkey.conftest import Opener


async def linked(server: ValkeyServer, timeout_seconds: float = 5.0) -> Link:
    place = Place("127.0.0.1", server.port)
    address = Address(places=(place,), password=server.password, timeout_seconds=timeout_seconds)
    return (await connect(address, place))[0]


async def test_replies_belong_to_their_callers(server: ValkeyServer) -> None:
    link = await linked(server)
    texts = [f"text {n}".encode() * (n % 7 * 1_000 + 1) for n in range(500)]
    replies = await asyncio.gather(*(link.ask([pack("ECHO", text)]) for text in texts))
    assert [reply for (reply,) in replies] == texts
    link.lose(StoreUnavailable("done"))


async def test_a_caller_that_gave_up_does_not_move_the_replies_of_others(
    server: ValkeyServer,
) -> None:
    link = await linked(server)
    first = link.ask([pack("ECHO", "first")])
    second = link.ask([pack("ECHO", "second"), pack("ECHO", "third")])
    first.cancel()
    assert await second == [b"second", b"third"]
    link.lose(StoreUnavailable("done"))


async def test_who_waits_for_a_silent_server_is_told(server: ValkeyServer) -> None:
    link = await linked(server, timeout_seconds=0.1)
    waiting = [link.ask([pack("BLPOP", "nothing", 0)]), link.ask([pack("PING")])]
    for each in waiting:
        with pytest.raises(StoreUnavailable, match=r"no answer within 0\.1 s"):
            await each
    assert link.is_lost
    with pytest.raises(StoreUnavailable):
        await link.ask([pack("PING")])


async def test_bodies_of_many_megabytes_come_back_as_they_were(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    store = opener(url)
    await store.migrate()
    bodies = [os.urandom(1 << 20) for _ in range(24)]
    await put(store, clock, *(order(n, payload=body) for n, body in enumerate(bodies)))
    leases = await store.claim(ask(clock.now_ms(), limit=24))
    assert [lease.payload for lease in leases] == bodies
    ids = [execution_id(n) for n in range(24)]
    loaded = await store.load(Want(ids=ids, payload=True))
    assert [each.payload for each in loaded if each] == bodies


async def test_a_restarted_server_is_reached_again(opener: Opener, clock: VirtualClock) -> None:
    with valkey_server({"appendfsync": "always"}) as server:
        store = opener(server.url)
        await store.migrate()
        await put(store, clock, order(0))
        server.kill()
        with pytest.raises(StoreUnavailable):
            await put(store, clock, order(1))
        server.start()
        await put(store, clock, order(1))
        assert len(await store.claim(ask(clock.now_ms(), limit=10))) == 2


async def test_a_connection_that_was_cut_is_opened_again(
    opener: Opener, server: ValkeyServer, clock: VirtualClock
) -> None:
    store = opener(server.url)
    await store.migrate()
    link = await store.network.link(store.network.places()[0])
    with server.talk() as talk:
        talk.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await link.gone.wait()
    await put(store, clock, order(0))
    assert await store.network.link(store.network.places()[0]) is not link


async def test_a_loop_that_ends_takes_its_connections_with_it(
    opener: Opener, server: ValkeyServer, clock: VirtualClock
) -> None:
    """Nobody closes them by name, and nothing is left open."""
    store = opener(server.url)
    await store.migrate()
    links: list[Link] = []

    async def elsewhere() -> None:
        await put(store, clock, order(len(links)))
        links.append(await store.network.link(store.network.places()[0]))

    for _ in range(3):
        await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
    assert [link.is_lost for link in links] == [True] * 3
    assert len(await store.claim(ask(clock.now_ms(), limit=10))) == 3


async def test_a_closed_store_has_no_connection_in_any_loop(
    opener: Opener, server: ValkeyServer
) -> None:
    store = opener(server.url)
    await store.migrate()
    mine = await store.network.link(store.network.places()[0])
    opened, release = asyncio.Event(), asyncio.Event()
    here = asyncio.get_running_loop()
    theirs: list[Link] = []

    async def elsewhere() -> None:
        theirs.append(await store.network.link(store.network.places()[0]))
        here.call_soon_threadsafe(opened.set)
        await theirs[0].gone.wait()

    thread = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(elsewhere())))
    await opened.wait()
    await store.close()
    await thread
    assert mine.is_lost
    assert theirs[0].is_lost
    release.set()


async def test_a_name_and_a_password_of_a_user_are_shown_to_the_server(
    opener: Opener, server: ValkeyServer, clock: VirtualClock
) -> None:
    with server.talk() as talk:
        talk.ask("ACL", "SETUSER", "flows", "on", ">pass", "~*", "&*", "+@all")
    url = f"valkey://flows:pass@127.0.0.1:{server.port}"
    store = opener(url)
    await store.migrate()
    key = store.keys.shared("meta")
    assert await store.caller.one(command(key, "ACL", "WHOAMI")) == b"flows"


async def test_a_database_of_its_own_holds_its_own_keys(
    opener: Opener, server: ValkeyServer, clock: VirtualClock
) -> None:
    zero, one = opener(server.url), opener(f"{server.url}/1")
    for store in (zero, one):
        await store.migrate()
    await put(one, clock, order(0))
    assert await zero.load(Want(ids=[order(0).id])) == [None]
