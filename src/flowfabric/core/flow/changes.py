"""What a decision about a flow hands to a store: guarded patches and plain records.

The flow's `rev` is the guard of everything a flow owns, so edges, groups and lines carry no guard
of their own: a store writes them when the flow is as it was seen, and not otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from flowfabric.core.flow.model import FLOW_COLUMNS, Edge, EdgeKey, EdgeState
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import Value
from flowfabric.core.states import Outcome
from flowfabric.errors import IllegalTransition

_FIXED = frozenset({"id", "namespace", "name", "creator", "created_ms", "digest", "rev"})
WRITABLE = frozenset(FLOW_COLUMNS) - _FIXED


class FlowPatch(msgspec.Struct, frozen=True, gc=False):
    """If the flow still has this `rev`: write the columns and raise it, also for no column.

    Without a `rev`, the flow only has to be there: nothing of it is written, so that lines can be
    added whatever else happens to it.
    """

    id: FlowId
    rev: int | None
    patch: Mapping[str, Value]


class Resolution(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What became of one edge: every column that an end can change."""

    downstream: ExecutionId
    group: str
    upstream: ExecutionId
    state: EdgeState
    generation: int
    attempt: int
    outcome: Outcome
    resolved_ms: int | None

    @property
    def key(self) -> EdgeKey:
        return EdgeKey(self.downstream, self.group, self.upstream)

    def of(self, edge: Edge) -> Edge:
        """The edge as it is then."""
        return msgspec.structs.replace(
            edge,
            state=self.state,
            generation=self.generation,
            attempt=self.attempt,
            outcome=self.outcome,
            resolved_ms=self.resolved_ms,
        )


class Note(msgspec.Struct, frozen=True, gc=False):
    """A line of the log about an execution that is not changed."""

    execution: ExecutionId
    kind: str
    detail: Mapping[str, Value]


@lru_cache(maxsize=256)
def require_columns(*columns: str) -> None:
    """Of a flow, nobody may write others."""
    extra = sorted(set(columns) - WRITABLE)
    if extra:
        raise IllegalTransition(f"{', '.join(extra)} of a flow cannot be written")
