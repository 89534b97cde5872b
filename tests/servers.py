"""The servers that the suite runs on: private ones, or those that the environment names.

Each is started when a test first needs it, once per test process, and is gone when that process
ends, whichever way. A server that cannot start fails the tests that need it; none is skipped.
No test lives here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from flowfabric.testing.servers import postgres_server, valkey_cluster, valkey_server
from tests.schemas import SCHEMAS

# Stores that several processes can share, and that outlive them.
DURABLE = ("sqlite", "postgres", "valkey", "valkey-cluster")
NAMED_BY = {
    "postgres": "FLOWFABRIC_TEST_POSTGRES",
    "valkey": "FLOWFABRIC_TEST_VALKEY",
    "valkey-cluster": "FLOWFABRIC_TEST_VALKEY_CLUSTER",
    "postgres-16": "FLOWFABRIC_TEST_POSTGRES_16",
}
# Two stores on one server have nothing in common but the server.
_PLACE = {
    "postgres": "schema",
    "postgres-16": "schema",
    "valkey": "prefix",
    "valkey-cluster": "prefix",
}

# A test says what is written, not what survives a loss of power.
HASTY_POSTGRES = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
_HASTY_VALKEY = {"appendonly": "no"}


class Servers:
    """URLs of running servers."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._urls: dict[str, str] = {}

    def url(self, kind: str) -> str:
        if kind not in self._urls:
            self._urls[kind] = os.environ.get(NAMED_BY[kind]) or self._start(kind)
        return self._urls[kind]

    def close(self) -> None:
        for kind, url in self._urls.items():
            if _PLACE[kind] == "schema" and NAMED_BY[kind] in os.environ:
                asyncio.run(SCHEMAS.drop(kind, url))
        self._urls.clear()
        self._stack.close()

    def _start(self, kind: str) -> str:
        if kind in ("postgres", "postgres-16"):
            version = 16 if kind == "postgres-16" else 18
            server = postgres_server(version, settings=HASTY_POSTGRES)
            return self._stack.enter_context(server).url
        if kind == "valkey":
            return self._stack.enter_context(valkey_server(settings=_HASTY_VALKEY)).url
        return self._stack.enter_context(valkey_cluster(settings=_HASTY_VALKEY)).url


SERVERS = Servers()


class LastingServer(Protocol):
    """A server that keeps what it acknowledged, as production does, and can be killed."""

    @property
    def url(self) -> str: ...
    def kill(self) -> None: ...
    def start(self) -> None: ...


@contextmanager
def lasting_server(kind: str) -> Iterator[LastingServer]:
    """One of its own for a test."""
    started = postgres_server() if kind == "postgres" else valkey_server()
    with started as server:
        yield server


def store_url(kind: str, path: Path, *, is_new: bool = False) -> str:
    """The URL of a store of this kind: the same for the same path, and no other for another.

    `is_new`: not even set up by a test before, for one that wants it divided in another way.
    """
    if kind in NAMED_BY:
        is_schema = _PLACE[kind] == "schema"
        place = SCHEMAS.of(kind, path, is_new=is_new) if is_schema else _prefix(path)
        return f"{SERVERS.url(kind)}?{_PLACE[kind]}={place}"
    return "memory://" if kind == "memory" else f"sqlite:///{path}?synchronous=NORMAL"


def _prefix(path: Path) -> str:
    return f"test_{sha256(str(path).encode()).hexdigest()[:24]}"
