"""Ports for private servers: free now, and out of the way of outgoing connections.

Systems give outgoing connections ports from 32768 upwards. A server that is stopped and started
again must find its port free, so ours are below that, and so is the port that a node of a cluster
talks to the others on, which is ten thousand higher.
"""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"
BUS_OFFSET = 10_000
_LOWEST, _HIGHEST = 12_000, 22_000


def free_port(*, bus: bool = False) -> int:
    """A port that nobody listens on; with `bus`, the one ten thousand above is free too."""
    chance = random.SystemRandom()
    for _ in range(1_000):
        port = chance.randrange(_LOWEST, _HIGHEST)
        if _is_free(port) and (not bus or _is_free(port + BUS_OFFSET)):
            return port
    raise OSError(f"no free port between {_LOWEST} and {_HIGHEST}")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
