"""A wire between a store and its server that a test can cut.

What the client says always arrives. A cut happens when the server has answered and the answer is
on its way back: the client cannot know what has become of its call. No test lives here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import hiredis

CHUNK = 1 << 16


class Proxy:
    """Connections to one server. `cut_at(n)` loses the n-th answer from now, and its connection."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._left: int | None = None
        self._server: asyncio.Server | None = None
        self._refusals: list[tuple[bytes, bytes]] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._is_dead = False
        self.cuts = 0

    @property
    def url(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        user, _, _ = self._target.netloc.rpartition("@")
        return self._target._replace(netloc=f"{user}@127.0.0.1:{port}").geturl()

    def cut_at(self, answer: int) -> None:
        self._left = answer or None

    def cut_always(self) -> None:
        """Lose every first answer from now on."""
        self._is_dead = True

    def refuse(self, word: bytes, answer: bytes) -> None:
        """The next request with this word in it gets this answer, and the server never sees it."""
        self._refusals.append((word, answer))

    @property
    def is_done(self) -> bool:
        """Whether everything that was planned has happened."""
        return not self._refusals and self._left is None

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """In tasks of our own, which are ended with the proxy."""
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._target.hostname, self._target.port
        server_reader, server_writer = await asyncio.open_connection(host, port)
        try:
            forth = asyncio.create_task(self._forth(reader, server_writer, writer))
            try:
                # Either end may be gone by now, which ends this connection and nothing else.
                with suppress(ConnectionError):
                    await self._back(server_reader, writer)
            finally:
                forth.cancel()
                await asyncio.wait([forth])
        finally:
            for end in (writer, server_writer):
                end.close()

    async def _forth(
        self,
        client: asyncio.StreamReader,
        server: asyncio.StreamWriter,
        back: asyncio.StreamWriter,
    ) -> None:
        while data := await client.read(CHUNK):
            planned = next((each for each in self._refusals if each[0] in data), None)
            if planned is None:
                server.write(data)
            else:
                self._refusals.remove(planned)
                await _swallow(client, data)
                back.write(planned[1])
        server.close()

    async def _back(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while data := await server.read(CHUNK):
            if self._is_dead:
                self.cuts += 1
                return
            if self._left is not None:
                self._left -= 1
                if self._left == 0:
                    self._left = None
                    self.cuts += 1
                    return
            client.write(data)


async def _swallow(client: asyncio.StreamReader, data: bytes) -> None:
    """The rest of requests of Valkey that came in parts."""
    requests = hiredis.Reader()
    requests.feed(data)
    while True:
        while requests.gets() is not False:
            pass
        if not requests.has_data():
            return
        requests.feed(await client.read(CHUNK))


@asynccontextmanager
async def proxy_of(url: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(url)
    await proxy.open()
    try:
        yield proxy
    finally:
        await proxy.close()
