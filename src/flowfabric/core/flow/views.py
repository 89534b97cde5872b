"""What is asked of a store about flows, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flowfabric.core.flow.model import Edge, Flow, FlowState, Group, Line, Unreadable
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import Execution
from flowfabric.core.states import State

LINES_LIMIT = 500
EDGES_LIMIT = 500


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A dispatcher's ask for flows with something to do, its own until `until_ms`.

    With `only`, those of these flows; else the next ones after `after` in the order of their ids,
    going round to the first.
    """

    limit: int
    now_ms: int
    until_ms: int
    only: Sequence[FlowId] = ()
    after: str = ""
    lines: int = LINES_LIMIT


class Pending(msgspec.Struct, frozen=True):
    """One flow with work, and its open lines, oldest first, up to the limit."""

    flow: Flow
    lines: list[Line]
    unreadable: list[Unreadable] = msgspec.field(default_factory=list)


def name_of(taken: Pending | Unreadable) -> str:
    """The id of the flow that was taken, whether it can be read or not."""
    return taken.name if isinstance(taken, Unreadable) else taken.flow.id


class FlowQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which flows to list: every condition that is set must hold; ordered by id; `after` excluded.

    A flow that is still being submitted is not there yet. `unsettled`: only those with members that
    have not ended, or are not counted.
    """

    namespace: str | None = None
    name: str | None = None
    states: tuple[FlowState, ...] = ()
    unsettled: bool = False
    after: str = ""
    limit: int = 100


class Members(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the members of a flow in these states (none: in all), in the order of their ids."""

    states: tuple[State, ...] = ()
    after: str = ""
    limit: int = 500


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """What of one flow to look at.

    `leaving`: pending edges with one of these upstreams, in the order (upstream, downstream,
    group), `edges` of them at most. `entering`: every edge with one of these downstreams.
    `whole`: every edge there is. Groups are answered for every downstream of `leaving` edges, of
    `entering` and of `groups`. Heads are answered for `heads`, for downstreams of `leaving` edges,
    for upstreams of `entering` edges if `ends` is set, and for the page of `members`. `lines`: all
    lines; `due_lines`: so many of the oldest whose time has come at `now_ms`. `tally`: how many
    members are in each stored state, whatever it says.
    """

    flow: FlowId
    heads: Sequence[ExecutionId] = ()
    leaving: Sequence[ExecutionId] = ()
    entering: Sequence[ExecutionId] = ()
    groups: Sequence[ExecutionId] = ()
    members: Members | None = None
    lines: bool = False
    due_lines: int = 0
    now_ms: int = 0
    whole: bool = False
    ends: bool = False
    tally: bool = False
    edges: int = EDGES_LIMIT


class View(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What was seen in one moment. A record that cannot be read is in `unreadable` instead."""

    flow: Flow | None
    edges: list[Edge] = msgspec.field(default_factory=list)
    groups: list[Group] = msgspec.field(default_factory=list)
    heads: dict[ExecutionId, Execution] = msgspec.field(default_factory=dict)
    members: list[ExecutionId] = msgspec.field(default_factory=list)
    lines: list[Line] = msgspec.field(default_factory=list)
    tally: dict[str, int] = msgspec.field(default_factory=dict)
    unreadable: list[Unreadable] = msgspec.field(default_factory=list)
