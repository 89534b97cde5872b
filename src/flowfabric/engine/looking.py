"""Looks at parts of flows for whoever must not be told less than there is.

Dispatchers and sweepers look at the store themselves and go on with what can be read; whatever is
shown to people, or decided for them, comes from here.
"""

from __future__ import annotations

from flowfabric.core.flow.gaps import gaps_in
from flowfabric.core.flow.views import Sight, View
from flowfabric.store.damage import unreadable_part
from flowfabric.store.protocol import Store


async def look(store: Store, sight: Sight) -> View:
    """One look; a flow that cannot be read is `Corrupt`, and not the same as none."""
    view = (await store.graph([sight]))[0]
    if view.flow is None:
        for lost in view.unreadable:
            raise unreadable_part(sight.flow, lost)
    return view


async def look_at_whole(store: Store, sight: Sight, now_ms: int) -> View:
    """The same with everything that was asked for: `Corrupt` names what cannot be read."""
    view = await look(store, sight)
    require_whole(sight, view, now_ms)
    return view


def require_whole(sight: Sight, view: View, now_ms: int) -> None:
    for lost in (*view.unreadable, *gaps_in(sight, view, now_ms)):
        raise unreadable_part(sight.flow, lost)
