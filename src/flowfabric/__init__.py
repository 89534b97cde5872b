"""FlowFabric: work that survives crashes, in Python.

The names below are the public surface; everything else may change.
"""

import logging

from flowfabric.app import App, SyncApp
from flowfabric.client.bulk import Changed
from flowfabric.client.finding import Found
from flowfabric.client.flow_handle import FlowHandle
from flowfabric.client.handle import Handle
from flowfabric.client.listing import Listing
from flowfabric.client.sync_handles import (
    SyncFlowHandle,
    SyncFound,
    SyncHandle,
    SyncListing,
)
from flowfabric.core.attempt_record import AttemptRecord
from flowfabric.core.carried import Carrier
from flowfabric.core.explain import Explanation
from flowfabric.core.failures import FailureReport
from flowfabric.core.flow.summary import FlowSnapshot
from flowfabric.core.model import Event, Lease
from flowfabric.core.policy import Exponential, Fixed, RetryPolicy
from flowfabric.core.registry import WorkerRecord
from flowfabric.core.states import LaneState, PublicState
from flowfabric.engine.engine import Engine
from flowfabric.engine.lane_reading import LaneRecord
from flowfabric.engine.reading import Snapshot
from flowfabric.errors import (
    Conflict,
    ExecutionCancelled,
    ExecutionEnded,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionNotFound,
    ExecutionSkipped,
    FlowFabricError,
    IdempotencyConflict,
    Invalid,
    InvalidInput,
    LeaseLost,
    NotFound,
    Refused,
    ResultTimeout,
    StoreUnavailable,
    TaskError,
)
from flowfabric.graph import Graph
from flowfabric.node import Node
from flowfabric.ref import Ref
from flowfabric.task import AsyncTask, Call, SyncTask, Task
from flowfabric.version import VERSION
from flowfabric.worker.context import Context
from flowfabric.worker.type_hooks import TypeHook

logging.getLogger("flowfabric").addHandler(logging.NullHandler())

__version__ = VERSION

__all__ = [
    "App",
    "AsyncTask",
    "AttemptRecord",
    "Call",
    "Carrier",
    "Changed",
    "Conflict",
    "Context",
    "Engine",
    "Event",
    "ExecutionCancelled",
    "ExecutionEnded",
    "ExecutionExpired",
    "ExecutionFailed",
    "ExecutionNotFound",
    "ExecutionSkipped",
    "Explanation",
    "Exponential",
    "FailureReport",
    "Fixed",
    "FlowFabricError",
    "FlowHandle",
    "FlowSnapshot",
    "Found",
    "Graph",
    "Handle",
    "IdempotencyConflict",
    "Invalid",
    "InvalidInput",
    "LaneRecord",
    "LaneState",
    "Lease",
    "LeaseLost",
    "Listing",
    "Node",
    "NotFound",
    "PublicState",
    "Ref",
    "Refused",
    "ResultTimeout",
    "RetryPolicy",
    "Snapshot",
    "StoreUnavailable",
    "SyncApp",
    "SyncFlowHandle",
    "SyncFound",
    "SyncHandle",
    "SyncListing",
    "SyncTask",
    "Task",
    "TaskError",
    "TypeHook",
    "WorkerRecord",
    "__version__",
]
