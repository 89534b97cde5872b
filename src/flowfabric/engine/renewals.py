"""What becomes of leases that are renewed: their new end, or why they are over."""

from __future__ import annotations

import msgspec

from flowfabric.core import refusal
from flowfabric.core.model import Execution, Lease
from flowfabric.core.states import State
from flowfabric.core.transition import Applied, Rejected
from flowfabric.errors import FlowFabricError, StaleLease


class Renewed(msgspec.Struct, frozen=True):
    """A lease with its new end, or why it is over."""

    lease: Lease
    error: FlowFabricError | None = None


def renewed(lease: Lease, reply: Applied | Rejected, now_ms: int, ttl_ms: int) -> Renewed:
    if isinstance(reply, Rejected):
        return Renewed(lease, lease_error(reply.current, lease, now_ms))
    until_ms = max(now_ms + ttl_ms, lease.until_ms)
    head = msgspec.structs.replace(lease.head, lease_until_ms=until_ms, renewed_ms=now_ms)
    return Renewed(Lease(head, lease.payload))


def held_as(row: Execution | None, lease: Lease) -> Lease:
    """The lease as its row says it is, if it is held under this epoch and token, and has begun or
    not. If not, the guard of whatever is said about it does not hold, and nothing else in it
    decides anything."""
    if row is None or row.state is not State.ACTIVE or not refusal.is_owner(row, lease):
        return lease
    stored = Lease(row, lease.payload)
    return stored if stored.started == lease.started else lease


def not_renewed(lease: Lease, error: Exception) -> FlowFabricError:
    if isinstance(error, FlowFabricError):
        return error
    return StaleLease(f"the lease of {lease.id} could not be renewed: {error!r}")


def lease_error(row: Execution | None, lease: Lease, now_ms: int) -> FlowFabricError:
    error = refusal.refusal_of_lease(row, lease, now_ms)
    return error or StaleLease(f"the lease of {lease.id} changed at the same moment")
