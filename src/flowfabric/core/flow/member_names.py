"""Names of members: what a graph calls them, and how each is found again by its name.

The id of a named member follows from the id of its flow and the name, so every process that knows
both knows the member. The name itself is kept as a tag, which listings, logs and `explain` read.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID, uuid5

from flowfabric.core.ids import ExecutionId, FlowId, PartitionCounts, flow_execution_id

TAG = "flow.member"

# No place of a member in its graph reads like this.
_PREFIX = "name:"
# Where an id tells the version of its UUID, counted from its end.
_VERSION = -22
_NAME_BASED = "5"


def named_uuid(flow: FlowId, name: str) -> str:
    return str(uuid5(UUID(flow), f"{_PREFIX}{name}"))


def named_id(flow: FlowId, name: str, counts: PartitionCounts) -> ExecutionId:
    """The one member of this flow that can have this name."""
    return flow_execution_id(flow, named_uuid(flow, name), counts)


def may_be_named(id: ExecutionId) -> bool:
    """Whether the tags of a member are worth a look: most ids show that there is no name."""
    return id[_VERSION] == _NAME_BASED


def name_in(tags: Mapping[str, str]) -> str:
    """The name of a member; empty if it has none."""
    return tags.get(TAG, "")
