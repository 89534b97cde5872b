"""What the demo does, in order: work is asked for, a worker is killed, the rest is waiting.

Every step follows from a line of the log. Nothing waits for a fixed time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from flowfabric.cli.demo.board import Board, Happening
from flowfabric.cli.demo.crew import Crew
from flowfabric.cli.demo.log import Follower
from flowfabric.cli.demo.notes import Effect, Notes
from flowfabric.cli.demo.premiere import LOSERS, NAME, premiere_of
from flowfabric.cli.demo.proof import Evidence, Killed
from flowfabric.cli.demo.screen import Screen, now_ms
from flowfabric.cli.demo.tasks import (
    LEASE_TTL_SECONDS,
    WORKERS,
    Shop,
    errands_of,
    hellos_of,
    orders_of,
)
from flowfabric.cli.demo.wanted import Started, Wanted
from flowfabric.client.handle import Handle
from flowfabric.core.states import PublicState, State

LIMIT_SECONDS = 60
DONE_BEFORE_KILL = 3
HELD_RENDERS = 2


class Story:
    """One run. `play` answers what the closing proof needs."""

    def __init__(
        self, shop: Shop, crew: Crew, screen: Screen, *, orders: int, notes: Notes
    ) -> None:
        self._shop = shop
        self._notes = notes
        self._crew = crew
        self._screen = screen
        self._orders = orders_of(shop, orders)
        self._board = Board()
        self._evidence = Evidence()
        self._listener: Handle[object] | None = None

    async def play(self) -> Evidence:
        self._tell("demo", "starts two worker processes, which share only the store")
        await self._shop.app.connect()
        follower = Follower(self._shop.app.engine)
        await follower.begin()
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                await self._greet(follower)
                await self._submit_flow()
                await self._ask()
                await self._follow(follower, until=self._is_over)
        except TimeoutError:
            self._tell("demo", f"stopped waiting after {LIMIT_SECONDS} s")
        finally:
            follower.end()
        return self._evidence

    async def _greet(self, follower: Follower) -> None:
        """Wait until both workers are there, so that the killing is fair."""
        handles = await self._shop.app.start_many(hellos_of(self._shop))
        for number, handle in zip(WORKERS, handles, strict=True):
            label = f"hello from worker {number}"
            self._board.greeters[handle.id] = number
            self._board.watch({handle.id: label})
        await self._follow(follower, until=lambda: self._board.is_over)
        for number, handle in zip(WORKERS, handles, strict=True):
            self._tell(f"worker {number}", f"is process {await handle.result()}")

    async def _submit_flow(self) -> None:
        flow = premiere_of(self._shop.app, self._shop.studio)
        run = await flow.graph.submit()
        handles = [run.handle(node) for node in flow.nodes]
        started = list(zip(flow.wanted, handles, strict=True))
        self._board.watch({handle.id: one.label for one, handle in started})
        self._board.members = {one.label: handle.id for one, handle in started}
        self._evidence.started += started
        self._evidence.flow = started
        self._tell("caller", f"submitted the flow {NAME} with {len(started)} members")

    async def _ask(self) -> None:
        started = await self._start([*self._orders, *errands_of(self._shop)])
        self._evidence.started += started
        for wanted, handle in started:
            if wanted.ends is PublicState.CANCELLED:
                self._listener = handle
        self._tell("caller", f"submitted {len(started)} executions in one call")

    async def _start(self, wanted: Sequence[Wanted]) -> list[Started]:
        handles = await self._shop.app.start_many(one.call for one in wanted)
        labels = {handle.id: one.label for one, handle in zip(wanted, handles, strict=True)}
        self._board.watch(labels)
        return list(zip(wanted, handles, strict=True))

    async def _follow(self, follower: Follower, *, until: Callable[[], bool]) -> None:
        pages = follower.pages()
        async for lines in pages:
            for line in lines:
                happening = self._board.absorb(line)
                if happening is not None:
                    self._screen.tell(happening)
            self._screen.show(self._board)
            self._crew.check()
            if until():
                break
            await self._take_steps()
        await pages.aclose()

    def _is_over(self) -> bool:
        """Everything has ended, and who lost a race has heard of it."""
        if not self._board.is_over:
            return False
        stopped = {note.id for note in self._notes.read() if note.effect is Effect.STOPPED}
        return all(self._board.members[label] in stopped for label in LOSERS)

    async def _take_steps(self) -> None:
        if self._listener is not None:
            if self._board.is_held(self._listener.id):
                listener, self._listener = self._listener, None
                await listener.cancel("the stream has no listeners")
        elif self._evidence.started and self._evidence.killed is None:
            victim = self._victim()
            if victim is not None:
                await self._kill(victim)
                await self._ask_again()

    def _victim(self) -> str | None:
        """A worker in the middle of long work, once something is done and both have begun."""
        if self._board.counts()[State.COMPLETED] < DONE_BEFORE_KILL + len(WORKERS):
            return None
        for worker in self._board.workers:
            labels = [self._board.labels[id] for id in self._board.held_by(worker)]
            if sum(label.startswith("render") for label in labels) >= HELD_RENDERS:
                return worker
        return None

    async def _kill(self, worker: str) -> None:
        number = self._board.workers[worker]
        process_id = self._crew.kill(number)
        self._board.killed.add(worker)
        self._evidence.killed = Killed(worker=number, process_id=process_id)
        seen = [await handle.status() for _, handle in self._evidence.started]
        self._evidence.held_by_killed = [
            one.id for one in seen if one.lease is not None and one.lease.worker == worker
        ]
        count = len(self._evidence.held_by_killed)
        self._tell(f"worker {number}", f"KILLED in the middle of {count} executions (SIGKILL)")
        self._tell("", f"its leases run out in {LEASE_TTL_SECONDS} s at the latest")

    async def _ask_again(self) -> None:
        """As a caller that lost its memory would: same keys, so nothing new may come of it."""
        known = {handle.id for _, handle in self._evidence.started}
        again = await self._start(self._orders)
        new = [handle for _, handle in again if handle.id not in known]
        self._evidence.asked_again = len(again)
        self._evidence.created_again = len(new)
        told = f"submitted the same {len(again)} orders again: {len(new)} new executions"
        self._tell("caller", told)

    def _tell(self, who: str, what: str) -> None:
        self._screen.tell(Happening(now_ms(), who, what))
