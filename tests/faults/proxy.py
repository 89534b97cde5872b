"""A wire between a store and its server that a test can cut.

What the client says always arrives. A cut happens when the server has answered and the answer is
on its way back: the client cannot know what has become of its call. No test lives here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

CHUNK = 1 << 16


class Proxy:
    """Connections to one server. `cut_at(n)` loses the n-th answer from now, and its connection."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._left: int | None = None
        self._server: asyncio.Server | None = None
        self.cuts = 0

    @property
    def url(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        user, _, _ = self._target.netloc.rpartition("@")
        return self._target._replace(netloc=f"{user}@127.0.0.1:{port}").geturl()

    def cut_at(self, answer: int) -> None:
        self._left = answer

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._target.hostname, self._target.port
        server_reader, server_writer = await asyncio.open_connection(host, port)
        try:
            forth = asyncio.create_task(self._forth(reader, server_writer))
            await self._back(server_reader, writer)
            forth.cancel()
            await asyncio.wait([forth])
        finally:
            for end in (writer, server_writer):
                end.close()

    async def _forth(self, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while data := await client.read(CHUNK):
            server.write(data)
        server.close()

    async def _back(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while data := await server.read(CHUNK):
            if self._left is not None:
                self._left -= 1
                if self._left == 0:
                    self._left = None
                    self.cuts += 1
                    return
            client.write(data)


@asynccontextmanager
async def proxy_of(url: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(url)
    await proxy.open()
    try:
        yield proxy
    finally:
        await proxy.close()
