"""Routes: the names of the queues that ready work waits in.

A route is one text that stores compare and neither build nor split. It is the lane and the task for
now; what else a worker may need to know before it can take something becomes part of it here.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from flowfabric.core.model import ANY_ROUTE


def route_of(lane: str, task: str) -> str:
    """Where work of this task waits in this lane. A task has no space: no two are alike."""
    return f"{lane} {task}"


def lane_of(route: str) -> str:
    """The lane of a route that was made here."""
    return route.rpartition(" ")[0]


@lru_cache(maxsize=256)
def routes_of(lanes: tuple[str, ...], tasks: tuple[str, ...]) -> tuple[str, ...]:
    """All that somebody serves who knows these tasks and works in these lanes, each once."""
    return tuple(dict.fromkeys(route_of(lane, task) for lane in lanes for task in tasks))


def is_served(ready: Iterable[str], routes: frozenset[str]) -> bool:
    """Whether any of what has become ready is for somebody who serves these routes."""
    return any(route in routes or route == ANY_ROUTE for route in ready)
