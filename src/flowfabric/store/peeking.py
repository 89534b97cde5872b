"""How far a claim looks into the queues of many routes: a little into each, then further into those
that may still have better ones."""

from __future__ import annotations


def first_depth(limit: int, routes: int) -> int:
    """How many of each are looked at first: twice its share, so that few queues have to be looked
    at again where work is spread evenly."""
    return max(1, min(limit, 2 * -(-limit // max(routes, 1))))
