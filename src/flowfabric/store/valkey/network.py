"""The servers of one store as every event loop of the process reaches them.

Each loop has connections of its own, so that no thread waits for another; they end with their
loop. Which server serves which slot, and which life of a server we have met, is known to all.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from flowfabric.errors import StoreUnavailable
from flowfabric.forking import begin_here_and_in_children
from flowfabric.store.valkey.address import Address, Place
from flowfabric.store.valkey.connecting import (
    connect,
    require_fit,
    warn_of_loss,
    warn_of_replicas,
)
from flowfabric.store.valkey.library import forget_library, load_library
from flowfabric.store.valkey.link import Link, ReplyError, pack
from flowfabric.store.valkey.slots import SLOTS, Slots, read_slots, unserved
from flowfabric.store.valkey.trouble import unavailable


class Network:
    """`link(place)` is a connection in the running loop; `place(scope)` says where to ask."""

    def __init__(self, address: Address, on_new_life: Callable[[], None]) -> None:
        self.address = address
        self._on_new_life = on_new_life
        self._slots: Slots | None = None
        self._lives: dict[Place, str] = {}
        self._is_open = True
        begin_here_and_in_children(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._shores: dict[asyncio.AbstractEventLoop, _Shore] = {}

    @property
    def lives(self) -> dict[Place, str]:
        """Which life of each server was met last."""
        return self._lives

    def places(self) -> tuple[Place, ...]:
        """Every server that is written to."""
        if not self.address.is_cluster:
            return self.address.places[:1]
        return self._slots.places if self._slots else ()

    def place(self, scope: str) -> Place:
        if not self.address.is_cluster:
            return self.address.places[0]
        if self._slots is None:
            raise StoreUnavailable("the slots of the cluster are not known yet")
        return self._slots.place(scope)

    async def reach(self) -> None:
        """Reach the servers and refuse those that do not fit."""
        self._is_open = True
        if self.address.is_cluster:
            await self.refresh()
        for place in self.places():
            await self.link(place)

    async def load(self) -> None:
        """Make every server have our functions."""
        for place in self.places():
            await load_library(await self.link(place), place)

    async def forget(self, protocols: Iterable[int]) -> None:
        """Make every server forget the functions of older protocols."""
        for place in self.places():
            for protocol in protocols:
                await forget_library(await self.link(place), place, protocol)

    async def link(self, place: Place) -> Link:
        if not self._is_open:
            raise StoreUnavailable("the store is not open")
        loop = asyncio.get_running_loop()
        shore = self._shores.get(loop)
        if shore is None:
            shore = self._land(loop)
        link = shore.links.get(place)
        return link if link is not None and not link.is_lost else await shore.connect(place)

    def ready_link(self, place: Place) -> Link | None:
        """A connection of the running loop that is there already."""
        shore = self._shores.get(asyncio.get_running_loop())
        link = shore.links.get(place) if shore is not None else None
        return None if link is None or link.is_lost else link

    def _land(self, loop: asyncio.AbstractEventLoop) -> _Shore:
        with self._lock:
            for other in [each for each in self._shores if each.is_closed()]:
                del self._shores[other]
            shore = self._shores[loop] = _Shore(self)
            return shore

    async def meet(self, place: Place) -> Link:
        """A new connection; a server in another life than the one we knew is a new server."""
        link, facts = await connect(self.address, place)
        try:
            require_fit(facts, self.address, place)
        except BaseException:
            link.lose(StoreUnavailable(f"{place} cannot be used"))
            raise
        known = self._lives.get(place)
        self._lives[place] = facts.life
        if known is None:
            warn_of_loss(facts, place)
            if self.address.replicas and not facts.is_replica:
                await warn_of_replicas(link, self.address, place)
        elif known != facts.life:
            self._on_new_life()
        return link

    async def refresh(self) -> None:
        """Ask the cluster who serves what; the first node that answers is believed."""
        known = self._slots.places if self._slots else ()
        problem = StoreUnavailable("the cluster has no nodes")
        for place in dict.fromkeys((*known, *self.address.places)):
            try:
                link = await self.link(place)
                (reply,) = await link.ask([pack("CLUSTER", "SLOTS")])
            except StoreUnavailable as error:
                problem = error
                continue
            if isinstance(reply, ReplyError):
                problem = unavailable(reply, place)
                continue
            slots = read_slots(reply, place)
            if len(slots.missing()) == SLOTS:
                problem = unserved(slots)
                continue
            if slots.missing() and self._slots is None:
                raise unserved(slots)
            self._slots = slots
            return
        raise problem

    async def close(self) -> None:
        """Let go of every connection, in whatever loop it is."""
        self._is_open = False
        with self._lock:
            shores, self._shores = self._shores, {}
        here = asyncio.get_running_loop()
        for loop, shore in shores.items():
            if loop is here:
                await shore.close()
            else:
                with suppress(RuntimeError):  # its loop is over, and its connections with it
                    loop.call_soon_threadsafe(shore.leave)


class _Shore:
    """The connections of one event loop; a task keeps them until the loop ends."""

    def __init__(self, network: Network) -> None:
        self.links: dict[Place, Link] = {}
        self._network = network
        self._connecting: dict[Place, asyncio.Task[Link]] = {}
        self._guard = asyncio.get_running_loop().create_task(self._hold())

    async def _hold(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for link in self.links.values():
                link.lose(StoreUnavailable("the store was closed"))

    async def connect(self, place: Place) -> Link:
        """Callers that need the same server at the same time share one connection."""
        task = self._connecting.get(place)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._connect(place))
            self._connecting[place] = task
            task.add_done_callback(lambda _: self._connecting.pop(place, None))
        return await asyncio.shield(task)

    async def _connect(self, place: Place) -> Link:
        link = await self._network.meet(place)
        self.links[place] = link
        return link

    def leave(self) -> None:
        self._guard.cancel()

    async def close(self) -> None:
        self._guard.cancel()
        await asyncio.wait([self._guard, *self._connecting.values()])
        # One more turn, in which the sockets are closed.
        await asyncio.sleep(0)
