"""TLS: the same store through an encrypted connection, and no connection to who is not trusted.

The private server speaks no TLS, so something in front of it does. The certificate beside this
file, with its key, is for this and nothing else.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from flowfabric.core.lifecycle import complete
from flowfabric.core.states import State
from flowfabric.errors import InvalidInput, StoreUnavailable
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import order
from flowfabric.testing.conformance.steps import apply, head, put_and_take
from flowfabric.testing.servers import ValkeyServer
from tests.store.valkey.conftest import Opener

CERTIFICATE = Path(__file__).parent / "localhost.pem"


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def encrypted(server: ValkeyServer) -> AsyncIterator[str]:
    """The URL of something that speaks TLS and hands everything on to the server."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(pump(reader, inner[1]), pump(inner[0], writer))

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as listening:
        port = listening.sockets[0].getsockname()[1]
        yield f"valkeys://:{server.password}@localhost:{port}"


async def test_work_goes_through_an_encrypted_connection(
    opener: Opener, server: ValkeyServer, clock: VirtualClock
) -> None:
    async with encrypted(server) as url:
        store = opener(url, more=f"&ca={CERTIFICATE}")
        await store.migrate()
        lease = await put_and_take(store, clock, order(0, payload=bytes(range(256)) * 4_000))
        await apply(store, clock, complete(lease, clock.now_ms(), lease.payload))
        assert (await head(store, lease.id)).state is State.COMPLETED
        await store.drop()
        await store.close()


async def test_a_server_that_is_not_trusted_gets_nothing(
    opener: Opener, server: ValkeyServer
) -> None:
    async with encrypted(server) as url:
        store = opener(url)
        with pytest.raises(StoreUnavailable, match="cannot be reached") as refused:
            await store.migrate()
        assert isinstance(refused.value.__cause__, ssl.SSLCertVerificationError)
        assert server.password not in str(refused.value)


async def test_certificates_that_cannot_be_read_are_named(
    opener: Opener, server: ValkeyServer
) -> None:
    store = opener(f"valkeys://localhost:{server.port}", more="&ca=/no/such/file.pem")
    with pytest.raises(InvalidInput) as refused:
        await store.migrate()
    assert refused.value.field == "ca"
