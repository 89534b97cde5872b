"""A process of the simulation: its own clock, its own road to the store, its own tasks.

It can be killed between any two calls of the store and in the middle of one, stopped for a while
and go on as if nothing had happened, and be told wrong things about its own calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from flowfabric.errors import StoreUnavailable
from flowfabric.store.clock import FollowingClock
from flowfabric.store.hints import Hint, Hints
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.faults import FaultyStore, Verb
from flowfabric.testing.simulation.timeline import LocalClock
from flowfabric.testing.simulation.world import World

T = TypeVar("T")

# What is read here is written about next, and may have changed by then.
LOOKS = frozenset({Verb.LOAD, Verb.GRAPH, Verb.DUE, Verb.PENDING, Verb.DEPARTING})


class Process:
    """`on_death` is called once, when it was killed: somebody may want to start another."""

    def __init__(self, world: World, name: str, on_death: Callable[[], None]) -> None:
        self.name = name
        self.world = world
        self.is_dead = False
        self.tasks: dict[asyncio.Task[object], None] = {}
        off_ms = world.chance.randint(-world.dials.skew_ms, world.dials.skew_ms)
        self.clock = LocalClock(world.timeline, off_ms)
        self.hints = _OwnHints(self)
        self.store = Road(self)
        self._on_death = on_death
        self._stopped_until = 0.0

    def begin(self, work: Coroutine[object, object, object]) -> None:
        task = self.world.timeline.create_task(work, name=self.name)
        self.tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self.tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.is_dead:
            self.world.fail(error)

    def end(self) -> None:
        """Everything of it is gone at once."""
        self.is_dead = True
        self.world.processes.pop(self.name, None)
        for task in list(self.tasks):
            task.cancel()

    def kill(self, fault: str = "killed") -> None:
        if not self.is_dead:
            self.world.hit(fault)
            self.end()
            self._on_death()

    def stop_for(self, seconds: float) -> None:
        self.world.hit("stopped")
        self._stopped_until = self.world.timeline.time() + seconds

    async def run_on(self) -> None:
        """Until it is not stopped; a dead one gets no further."""
        left = self._stopped_until - self.world.timeline.time()
        if left > 0:
            await self.world.timeline.rest(left)
            await self.run_on()
        if self.is_dead:
            raise asyncio.CancelledError

    def hear(self, hint: Hint) -> None:
        if not self.is_dead:
            self.hints.deliver(hint)


class _OwnHints(Hints):
    """What a process tells itself may be lost as well."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def publish(self, hint: Hint) -> None:
        if hint != Hint():
            self._process.world.tell(self._process, hint)

    def deliver(self, hint: Hint) -> None:
        super().publish(hint)


class Road(FaultyStore):
    """The store as one process sees it."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.world.store)
        self._process = process

    @property
    def hints(self) -> Hints:
        return self._process.hints

    @hints.setter
    def hints(self, hints: Hints) -> None:
        raise AttributeError("a process keeps its own hints")

    async def _call(self, verb: Verb, run: Callable[[], Awaitable[T]]) -> T:
        process, world = self._process, self._process.world
        dials = world.dials
        sent = self._sent(run)
        self._mishap()
        await process.run_on()
        if world.happens(dials.error):
            world.hit("error")
            raise StoreUnavailable(f"{verb} failed before it did anything")
        told = await self._there(verb, sent)
        if world.happens(dials.crash):
            process.kill()
        await self._back(verb)
        await process.run_on()
        if world.happens(dials.lost_reply):
            world.hit("reply lost")
            raise StoreUnavailable(f"{verb} failed after it was done")
        return told

    def _sent(self, run: Callable[[], Awaitable[T]]) -> Callable[[], Awaitable[T]]:
        """The call with the caller's clock as it is when it is sent, however late it arrives."""
        clock = self.caller_clock and FollowingClock(VirtualClock(self.caller_clock.arriving_ms()))

        def arrived() -> Awaitable[T]:
            self.inner.caller_clock = clock
            return run()

        return arrived

    async def _back(self, verb: Verb) -> None:
        """The answer takes a while: between a look and a write there is room for others."""
        world, dials = self._process.world, self._process.world.dials
        least_ms = dials.look_ms if verb in LOOKS else 0
        most_ms = dials.short_delay_ms
        if verb in LOOKS and world.happens(dials.very_slow_look):
            most_ms = dials.long_delay_ms
        elif verb in LOOKS and world.happens(dials.slow_look):
            most_ms = dials.middle_delay_ms
        elif not least_ms and not world.happens(dials.short_delay):
            return
        await world.timeline.rest((least_ms + world.chance.randint(0, most_ms)) / 1000)

    def _mishap(self) -> None:
        process, world, dials = self._process, self._process.world, self._process.world.dials
        if world.happens(dials.crash):
            process.kill()
        if world.happens(dials.pause):
            process.stop_for(world.chance.random() * dials.pause_ms / 1000)
        if world.happens(dials.clock_jump):
            world.hit("clock set")
            process.clock.jump(world.chance.randint(-dials.skew_ms, dials.skew_ms))

    async def _there(self, verb: Verb, run: Callable[[], Awaitable[T]]) -> T:
        """To the store; what is long under way arrives also when the sender is dead by then."""
        process, world = self._process, self._process.world
        delay_ms = self._delay_ms()
        if not delay_ms:
            return await world.carry_out(process, verb, run)

        async def arrive() -> T:
            await world.timeline.rest(world.chance.randint(0, delay_ms) / 1000)
            return await world.carry_out(process, verb, run)

        if delay_ms <= world.dials.short_delay_ms:
            return await arrive()
        world.hit("delayed")
        sent: asyncio.Task[T] = world.timeline.create_task(arrive())
        world.keep(sent)
        return await asyncio.shield(sent)

    def _delay_ms(self) -> int:
        """How long at most this call is under way."""
        world, dials = self._process.world, self._process.world.dials
        if world.happens(dials.long_delay):
            return dials.long_delay_ms
        if world.happens(dials.middle_delay):
            return dials.middle_delay_ms
        return dials.short_delay_ms if world.happens(dials.short_delay) else 0
