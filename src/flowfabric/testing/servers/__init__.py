"""Private servers from wheels, for tests, measurements and trying things out.

Each is a context: it starts a real server on a free port in a temporary folder, and leaves nothing
behind, whichever way the process that started it ends. Needs the extra `flowfabric[servers]`.
"""

from flowfabric.testing.servers.cluster import ValkeyCluster, valkey_cluster
from flowfabric.testing.servers.postgres import (
    PostgresServer,
    postgres_server,
    postgres_standby,
)
from flowfabric.testing.servers.valkey import ValkeyServer, valkey_server

__all__ = [
    "PostgresServer",
    "ValkeyCluster",
    "ValkeyServer",
    "postgres_server",
    "postgres_standby",
    "valkey_cluster",
    "valkey_server",
]
