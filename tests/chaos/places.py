"""Stores of the lab: each on servers of its own that keep what they acknowledged, as production
does, and that can be killed. No test lives here."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from flowfabric.testing.servers import postgres_server, valkey_cluster, valkey_server
from flowfabric.testing.servers.cluster import ValkeyCluster


class Place(NamedTuple):
    """Where the store is, and how its server is killed and started again; a file has none."""

    url: str
    strike: Callable[[], None] | None = None


@contextmanager
def place_of(kind: str, folder: Path, chance: random.Random) -> Iterator[Place]:
    if kind == "sqlite":
        yield Place(f"sqlite:///{folder / 'chaos.db'}")
    elif kind == "valkey-cluster":
        with valkey_cluster() as cluster:
            yield Place(cluster.url, lambda: _strike_node(cluster, chance))
    else:
        started = postgres_server() if kind == "postgres" else valkey_server()
        with started as server:
            yield Place(server.url, lambda: _strike(server.kill, server.start))


def _strike(kill: Callable[[], None], start: Callable[[], None]) -> None:
    kill()
    start()


def _strike_node(cluster: ValkeyCluster, chance: random.Random) -> None:
    node = chance.choice(cluster.nodes)
    _strike(node.kill, node.start)
    cluster.wait_until_whole()
