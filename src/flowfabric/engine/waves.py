"""Splits what is to be written into calls that a store takes. Pure.

A call has a size limit and at most one change per record; a second change of a record goes into
a later call, where it meets what the first one made.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowfabric.core.transition import BATCH_LIMIT, Transition


def waves(transitions: Sequence[Transition]) -> list[list[int]]:
    """The positions of the transitions of each call, in the order of the calls."""
    if len({transition.id for transition in transitions}) == len(transitions):
        positions = range(len(transitions))
        starts = range(0, len(transitions), BATCH_LIMIT)
        return [list(positions[start : start + BATCH_LIMIT]) for start in starts]
    calls: list[dict[str, int]] = []
    for position, transition in enumerate(transitions):
        # Changes of one record stay in order: after the last call that has one.
        taken = [number for number, call in enumerate(calls) if transition.id in call]
        first = taken[-1] + 1 if taken else 0
        room = (number for number in range(first, len(calls)) if len(calls[number]) < BATCH_LIMIT)
        number = next(room, len(calls))
        if number == len(calls):
            calls.append({})
        calls[number][transition.id] = position
    return [list(call.values()) for call in calls]
