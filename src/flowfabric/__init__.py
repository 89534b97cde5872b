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
from flowfabric.core.attempt_record import AttemptLine, AttemptRecord
from flowfabric.core.carried import Carrier
from flowfabric.core.explain import Explanation
from flowfabric.core.failures import FailureReport
from flowfabric.core.flow.eligibility import Standing
from flowfabric.core.flow.model import CancelPolicy, Edge, Flow, FlowState, Group
from flowfabric.core.flow.outcome import FlowOutcome
from flowfabric.core.flow.summary import FlowSnapshot, FlowStatus, Summary
from flowfabric.core.model import Event, Execution, Lease
from flowfabric.core.policy import Exponential, Fixed, RetryPolicy
from flowfabric.core.registry import WorkerRecord
from flowfabric.core.states import LaneState, PublicState, Reason, State, Vector
from flowfabric.engine.engine import Engine
from flowfabric.engine.flow_cancelling import Backlog, CancelStatus, FlowCancel
from flowfabric.engine.flows import Picture
from flowfabric.engine.lane_reading import LaneRecord
from flowfabric.engine.reading import LeaseSummary, Snapshot
from flowfabric.engine.supervisor import Health
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
    Reaction,
    Refused,
    ResultTimeout,
    StoreUnavailable,
    TaskError,
)
from flowfabric.graph import Graph
from flowfabric.node import Choice, Condition, Node, OptionalResult
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
    "AttemptLine",
    "AttemptRecord",
    "Backlog",
    "Call",
    "CancelPolicy",
    "CancelStatus",
    "Carrier",
    "Changed",
    "Choice",
    "Condition",
    "Conflict",
    "Context",
    "Edge",
    "Engine",
    "Event",
    "Execution",
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
    "Flow",
    "FlowCancel",
    "FlowFabricError",
    "FlowHandle",
    "FlowOutcome",
    "FlowSnapshot",
    "FlowState",
    "FlowStatus",
    "Found",
    "Graph",
    "Group",
    "Handle",
    "Health",
    "IdempotencyConflict",
    "Invalid",
    "InvalidInput",
    "LaneRecord",
    "LaneState",
    "Lease",
    "LeaseLost",
    "LeaseSummary",
    "Listing",
    "Node",
    "NotFound",
    "OptionalResult",
    "Picture",
    "PublicState",
    "Reaction",
    "Reason",
    "Ref",
    "Refused",
    "ResultTimeout",
    "RetryPolicy",
    "Snapshot",
    "Standing",
    "State",
    "StoreUnavailable",
    "Summary",
    "SyncApp",
    "SyncFlowHandle",
    "SyncFound",
    "SyncHandle",
    "SyncListing",
    "SyncTask",
    "Task",
    "TaskError",
    "TypeHook",
    "Vector",
    "WorkerRecord",
    "__version__",
]
