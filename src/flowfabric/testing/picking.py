"""Which lease somebody shows: live ones mostly, and all those that should open no door."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from flowfabric.core.model import Execution, Lease
from flowfabric.core.states import Reason
from flowfabric.testing.claiming import Ask, claim
from flowfabric.testing.driver import Driver

LANES = ("main", "side")
TTLS_MS = (5_000, 30_000)

Mode = Literal["live", "over", "kept", "foreign"]


class Pick(NamedTuple):
    """Alive; over, which nobody has noticed yet; any that was ever handed out; or forged."""

    mode: Mode = "live"
    number: int = 0
    twist: int = 0


async def pick_lease(driver: Driver, pick: Pick, *, started: bool | None = True) -> Lease | None:
    """The lease to show; if there is none such, something is claimed first."""
    kept = _fitting(driver, pick.mode, started)
    if not kept and pick.mode != "kept":
        start, ttl_ms = started is not False, TTLS_MS[pick.twist % len(TTLS_MS)]
        for who in range(len(driver.engines)):
            await claim(driver, Ask(LANES, who=who, ttl_ms=ttl_ms, start=start))
        kept = _fitting(driver, "live", started) or driver.leases
    if not kept:
        return None
    lease = kept[-1 - pick.number % len(kept)]
    return _forged(lease, pick.twist) if pick.mode == "foreign" else lease


def _fitting(driver: Driver, mode: Mode, started: bool | None) -> list[Lease]:
    if mode == "kept":
        return driver.leases
    stored = [lease for lease in driver.leases if driver.is_stored(lease)]
    fitting = [lease for lease in stored if started in (None, lease.started)]
    return [lease for lease in fitting if driver.is_live(lease) == (mode != "over")]


def _forged(lease: Lease, twist: int) -> Lease:
    """The lease as somebody would show it who does not hold it."""
    head = lease.head
    reason = Reason.NONE if head.reason is Reason.GRANTED else Reason.GRANTED
    forgeries = (
        {"epoch": head.epoch + 1},
        {"epoch": head.epoch - 1},
        {"lease_token": "token-of-nobody"},
        {"reason": reason},
    )
    forged: Execution = msgspec.structs.replace(head, **forgeries[twist % len(forgeries)])
    return Lease(forged, lease.payload)
