"""What the caller of the demo asks for, and where: one piece of work, and how it has to end."""

from __future__ import annotations

from typing import NamedTuple

from flowfabric.client.handle import Handle
from flowfabric.core.states import PublicState
from flowfabric.task import Call

LANE = "demo"
FIRST = 100


class Wanted(NamedTuple):
    """One execution: how people call it, its call, how it has to end, and what it returns then."""

    label: str
    call: Call[object]
    ends: PublicState = PublicState.COMPLETED
    result: object = None


Started = tuple[Wanted, Handle[object]]
