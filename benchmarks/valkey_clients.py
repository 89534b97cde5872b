"""Which client the Valkey store should use: calls of a function, one item and a hundred per call.

    python benchmarks/valkey_clients.py --url redis://127.0.0.1:6379
    python benchmarks/valkey_clients.py --url redis://127.0.0.1:6379 --seconds 3 --json

Each client calls the same function with the same arguments, one caller and a hundred callers at
a time, in one event loop. The function writes one hash and one sorted set per item, as the store
does. Clients that are not installed are left out. `thin` is what the store uses: one connection
per event loop, requests written as they come, replies matched in order, parsed by hiredis.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

CALLERS = (1, 100)
SIZES = (1, 100)
PREFIX = "ffbench"
KEY = f"{PREFIX}:{{fp:7}}"
LIBRARY = """#!lua name=ffbench
redis.register_function('ffbench_write', function(keys, args)
  for item = 1, #args, 2 do
    local key = keys[1] .. args[item]
    redis.call('HSET', key, 'state', 'active', 'worker', 'w', 'body', args[item + 1])
    redis.call('ZADD', keys[1] .. ':due', '1', args[item])
  end
  return {'ok', #args / 2}
end)
"""

Call = Callable[[list[str]], Awaitable[object]]
Close = Callable[[], Awaitable[object]]
Opened = tuple[Call, Close]


class Thin(asyncio.Protocol):
    """Just enough of a connection to measure what the approach costs."""

    def __init__(self, hiredis: Any) -> None:
        self._pack = hiredis.pack_command
        self._reader = hiredis.Reader()
        self._waiting: list[asyncio.Future[object]] = []
        self._out: list[bytes] = []
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def call(self, *arguments: str) -> asyncio.Future[object]:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(self._pack(arguments))
        future: asyncio.Future[object] = self._loop.create_future()
        self._waiting.append(future)
        return future

    def _flush(self) -> None:
        self._transport.write(b"".join(self._out))
        self._out.clear()

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        done = 0
        while (reply := self._reader.gets()) is not False:
            self._waiting[done].set_result(reply)
            done += 1
        del self._waiting[:done]

    def close(self) -> None:
        self._transport.close()


async def connect_thin(url: str) -> Thin:
    parts = urlsplit(url)
    hiredis = importlib.import_module("hiredis")
    loop = asyncio.get_running_loop()
    where = (parts.hostname or "localhost", parts.port or 6379)
    _, link = await loop.create_connection(lambda: Thin(hiredis), *where)
    if parts.password:
        await link.call("AUTH", parts.username or "default", parts.password)
    return link


async def open_thin(url: str) -> Opened:
    link = await connect_thin(url)

    async def close() -> None:
        link.close()

    return lambda arguments: link.call("FCALL", "ffbench_write", "1", KEY, *arguments), close


async def open_redis(url: str) -> Opened:
    client: Any = importlib.import_module("redis.asyncio").Redis.from_url(url)
    return lambda arguments: client.fcall("ffbench_write", 1, KEY, *arguments), client.aclose


async def open_valkey(url: str) -> Opened:
    client: Any = importlib.import_module("valkey.asyncio").Valkey.from_url(url)
    return lambda arguments: client.fcall("ffbench_write", 1, KEY, *arguments), client.aclose


async def open_coredis(url: str) -> Opened:
    client: Any = importlib.import_module("coredis").Redis.from_url(url)
    await client.__aenter__()

    async def close() -> None:
        await client.__aexit__(None, None, None)

    return lambda arguments: client.fcall("ffbench_write", [KEY], arguments), close


async def open_glide(url: str) -> Opened:
    glide: Any = importlib.import_module("glide")
    parts = urlsplit(url)
    secret = glide.ServerCredentials(parts.password, parts.username) if parts.password else None
    settings = glide.GlideClientConfiguration(
        [glide.NodeAddress(parts.hostname, parts.port)], credentials=secret, request_timeout=5_000
    )
    client = await glide.GlideClient.create(settings)
    return lambda arguments: client.fcall("ffbench_write", [KEY], arguments), client.close


CLIENTS: dict[str, Callable[[str], Awaitable[Opened]]] = {
    "thin (hiredis)": open_thin,
    "redis-py": open_redis,
    "valkey-py": open_valkey,
    "coredis": open_coredis,
    "valkey-glide": open_glide,
}


async def measure(call: Call, *, callers: int, size: int, seconds: float) -> float:
    """Items per second; every caller has one call under way at a time."""
    arguments = [text for n in range(size) for text in (f":{n:036d}", '{"number":1}')]
    await asyncio.gather(*(call(arguments) for _ in range(callers)))
    done = 0
    began = time.perf_counter()
    end = began + seconds

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await call(arguments)
            done += size

    await asyncio.gather(*(caller() for _ in range(callers)))
    return done / (time.perf_counter() - began)


async def run(url: str, seconds: float) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    _, close = await prepare(url)
    for name, opener in CLIENTS.items():
        try:
            call, shut = await opener(url)
        except ImportError:
            continue
        found[name] = {
            f"{callers} callers, {size} per call": round(
                await measure(call, callers=callers, size=size, seconds=seconds)
            )
            for callers in CALLERS
            for size in SIZES
        }
        await shut()
    await close()
    return found


async def prepare(url: str) -> tuple[Thin, Close]:
    link = await connect_thin(url)
    await link.call("FUNCTION", "LOAD", "REPLACE", LIBRARY)

    async def close() -> None:
        """Everything that the measurement made is gone."""
        keys = [f"{KEY}:{n:036d}" for n in range(max(SIZES))]
        await link.call("UNLINK", f"{KEY}:due", *keys)
        await link.call("FUNCTION", "DELETE", PREFIX)
        link.close()

    return link, close


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default="redis://127.0.0.1:6379")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = asyncio.run(run(options.url, options.seconds))
    if options.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    columns = list(next(iter(found.values())))
    lines = ["| items per second | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    lines += [
        f"| {name} | " + " | ".join(f"{rates[column]:,}" for column in columns) + " |"
        for name, rates in found.items()
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
