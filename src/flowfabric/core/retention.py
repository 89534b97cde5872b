"""The words about what goes when nobody needs it any more.

An execution on its own goes when its own time has come. A flow goes as a whole: members, edges,
groups, lines and results leave together, so that nothing is taken from under somebody who waits.
Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from flowfabric.core.flow.model import Flow
from flowfabric.core.ids import ExecutionId, FlowId

PORTION = 500
# Entries are small and can be many more than what they are beside.
ENTRIES = 5000


class Departure(NamedTuple):
    """An execution on its own whose time has come, as it was seen."""

    id: ExecutionId
    rev: int


class FlowDeparture(NamedTuple):
    """A flow whose time has come, as it was seen."""

    id: FlowId
    rev: int


class Departing(msgspec.Struct, frozen=True):
    """What may go now, soonest first."""

    executions: list[Departure]
    flows: list[Flow]


class Purge(msgspec.Struct, frozen=True, kw_only=True):
    """What to remove with all that it owns, if it is as it was seen.

    Of a flow with more members than `members` so many are removed, and the flow stays for the next
    time; its `rev` rises. Of entries no more than `entries` are removed: an execution that has some
    left stays in the same way.
    """

    now_ms: int
    executions: Sequence[Departure] = ()
    flows: Sequence[FlowDeparture] = ()
    members: int = PORTION
    entries: int = ENTRIES


class Purged(msgspec.Struct, frozen=True):
    """`gone`: what is not there any more. `kept`: executions whose idempotency key is alive, and
    until when. `members`: how many members went with their flows or before them. `left`: how many
    executions stay for the next time, because they had more entries than may go at once."""

    gone: list[str]
    kept: dict[ExecutionId, int]
    members: int = 0
    left: int = 0
