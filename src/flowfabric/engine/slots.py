"""Slots: how much runs at once in a worker, and work that waits for other work gives its slot up.

A task that waits for its child would otherwise keep the slot that the child needs, and both would
wait for ever. When what it waits for has ended, it takes a slot again before anything new does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import Context, ContextVar, copy_context

from flowfabric.errors import Refused

# Each is held in memory with its lease.
WAITING_MAX = 10_000


class Slots:
    """The slots of one worker; `freed` is called when there may be room again."""

    def __init__(self, count: int, freed: Callable[[], None]) -> None:
        self.count = count
        self._freed = freed
        self._taken = 0
        self._waiting = 0
        self._returning: deque[asyncio.Future[None]] = deque()

    @property
    def room(self) -> int:
        """For how many more; those that come back go first."""
        return self.count - self._taken - len(self._returning)

    def take(self) -> Slot:
        self._taken += 1
        return Slot(self)

    def give_back(self) -> None:
        self._taken -= 1
        while self._returning and self._taken < self.count:
            place = self._returning.popleft()
            if not place.cancelled():
                place.set_result(None)
                self._taken += 1
        self._freed()

    def leave(self) -> None:
        if self._waiting >= WAITING_MAX:
            raise Refused(
                f"{self._waiting} tasks of this worker already wait for results",
                hint="use a flow: its members wait without a worker",
            )
        self._waiting += 1
        self.give_back()

    def return_at_once(self) -> None:
        """A task that is to end needs no room to do so."""
        self._waiting -= 1
        self._taken += 1

    async def come_back(self) -> None:
        if self.room > 0:
            self.return_at_once()
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._returning.append(place)
        try:
            await place
        except asyncio.CancelledError:
            # Unless there was room for it at that very moment, it goes on without.
            if place.cancelled():
                if place in self._returning:
                    self._returning.remove(place)
                self._taken += 1
            raise
        finally:
            self._waiting -= 1


class Slot:
    """The place of one attempt. It may wait for several others at once."""

    __slots__ = ("_is_over", "_slots", "_waits")

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._waits = 0
        self._is_over = False

    def enter(self) -> None:
        """What runs in this context from now on has this slot."""
        _here.set(self)

    def end(self) -> None:
        """The attempt is over; what it has left behind in this context has no slot."""
        self._is_over = True
        if self._waits:
            self._slots.return_at_once()
        self._slots.give_back()

    @asynccontextmanager
    async def given_up(self) -> AsyncIterator[None]:
        """While it waits for other work."""
        if self._is_over:
            yield
            return
        if not self._waits:
            self._slots.leave()
        self._waits += 1
        try:
            yield
        except BaseException:
            self._waits -= 1
            if not self._waits and not self._is_over:
                self._slots.return_at_once()
            raise
        self._waits -= 1
        if not self._waits and not self._is_over:
            await self._slots.come_back()


_here: ContextVar[Slot | None] = ContextVar("flowfabric_slot", default=None)


def slot_here() -> Slot | None:
    """The slot of the attempt that this code runs in, if it does in one."""
    return _here.get()


def context_without_slot() -> Context:
    """A copy of this context for a thread: slots belong to the event loop of their worker."""
    copied = copy_context()
    copied.run(_here.set, None)
    return copied
