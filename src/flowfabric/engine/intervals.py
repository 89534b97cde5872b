"""How often the nets under the engine look, by the name of the duty: the one place for cadences.

Work is done when it is heard of; these are the pauses after which somebody looks for what nobody
heard of. Names are those of metrics, health and sweeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class Duty(StrEnum):
    LEASE_EXPIRY = "lease_expiry"
    DELAYED_PROMOTER = "delayed_promoter"
    INDEX_RECONCILER = "index_reconciler"
    ATTEMPT_TIMEOUT = "attempt_timeout"
    SUSPENSION_TIMEOUT = "suspension_timeout"
    PENDING_WP_EXPIRY = "pending_wp_expiry"
    RETENTION_TRIMMER = "retention_trimmer"
    BUDGET_RESET = "budget_reset"
    BUDGET_RECONCILER = "budget_reconciler"
    UNBLOCK = "unblock"
    DEPENDENCY_RECONCILER = "dependency_reconciler"
    QUOTA_RECONCILER = "quota_reconciler"
    FLOW_PROJECTOR = "flow_projector"
    CANCEL_RECONCILER = "cancel_reconciler"
    EDGE_CANCEL_DISPATCHER = "edge_cancel_dispatcher"
    EDGE_CANCEL_RECONCILER = "edge_cancel_reconciler"
    EXECUTION_DEADLINE = "execution_deadline"


INTERVAL_MS: Mapping[Duty, int] = MappingProxyType(
    {
        Duty.LEASE_EXPIRY: 1_500,
        Duty.DELAYED_PROMOTER: 750,
        Duty.INDEX_RECONCILER: 45_000,
        Duty.ATTEMPT_TIMEOUT: 2_000,
        Duty.SUSPENSION_TIMEOUT: 2_000,
        Duty.PENDING_WP_EXPIRY: 5_000,
        Duty.RETENTION_TRIMMER: 60_000,
        Duty.BUDGET_RESET: 15_000,
        Duty.BUDGET_RECONCILER: 30_000,
        Duty.UNBLOCK: 5_000,
        Duty.DEPENDENCY_RECONCILER: 15_000,
        Duty.QUOTA_RECONCILER: 30_000,
        Duty.FLOW_PROJECTOR: 15_000,
        Duty.CANCEL_RECONCILER: 15_000,
        Duty.EDGE_CANCEL_DISPATCHER: 1_000,
        Duty.EDGE_CANCEL_RECONCILER: 10_000,
        Duty.EXECUTION_DEADLINE: 5_000,
    }
)
