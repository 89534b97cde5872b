"""What becomes of orders: which are refused before a store is asked, and what its answers mean."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from flowfabric.core.ids import ExecutionId, PartitionCounts, partition_of, stored_execution_id
from flowfabric.core.lifecycle import Order
from flowfabric.core.model import Inserted
from flowfabric.core.states import LaneState
from flowfabric.errors import (
    Corrupt,
    FlowFabricError,
    IdempotencyConflict,
    InvalidInput,
    LaneClosed,
)


class Submitted(msgspec.Struct, frozen=True):
    """The execution that exists now; `created` is False when an earlier submit made it."""

    id: ExecutionId
    created: bool
    error: FlowFabricError | None = None


def require_partition(id: ExecutionId, counts: PartitionCounts) -> None:
    if partition_of(stored_execution_id(id)) >= counts.flow:
        raise InvalidInput(
            f"{id} names a partition that this store does not have",
            field="execution_id",
            code="invalid_partition_index",
            hint=f"use partitions 0 to {counts.flow - 1}",
        )


def lane_refusal(order: Order, closed: Mapping[str, LaneState]) -> FlowFabricError | None:
    if order.lane not in closed:
        return None
    return LaneClosed(f"lane '{order.lane}' is {closed[order.lane]}", field="lane")


def submitted(order: Order, inserted: Inserted, too_late: FlowFabricError | None) -> Submitted:
    if inserted.problem:
        damaged = Corrupt(
            f"key {order.key!r} cannot be read: {inserted.problem}", details={"key": order.key}
        )
        return Submitted(order.id, created=False, error=damaged)
    if not inserted.exists:
        return Submitted(order.id, created=False, error=too_late)
    # The same id is the same order, sent again after its key had run out.
    is_same = inserted.digest == order.digest or (inserted.id == order.id and not inserted.digest)
    if not inserted.created and order.key is not None and not is_same:
        error = IdempotencyConflict(
            f"key {order.key!r} was used for execution {inserted.id} with another payload",
            field="idempotency_key",
            details={"execution": inserted.id},
        )
        return Submitted(inserted.id, created=False, error=error)
    return Submitted(inserted.id, inserted.created)
