"""The cycles that a limit writes: their ids, a hundred of one partition together.

They are made before the clock runs.
"""

from __future__ import annotations

import secrets
import time
from typing import NamedTuple

from flowfabric.core.ids import RANDOM_BITS, ExecutionId, PartitionCounts, execution_id, uuid7

BATCH = 100
TTL_MS = 30_000


class Cycles(NamedTuple):
    """`first` is how many cycles come before these."""

    first: int
    partition: int
    now_ms: int
    ids: list[ExecutionId]


def cycles_of(n: int) -> list[Cycles]:
    now_ms = time.time_ns() // 1_000_000
    partitions = PartitionCounts().flow
    return [
        _cycles(first, first // BATCH % partitions, now_ms, min(BATCH, n - first))
        for first in range(0, n, BATCH)
    ]


def _cycles(first: int, partition: int, now_ms: int, count: int) -> Cycles:
    uuids = (uuid7(now_ms, secrets.randbits(RANDOM_BITS)) for _ in range(count))
    return Cycles(first, partition, now_ms, [execution_id(partition, uuid) for uuid in uuids])
