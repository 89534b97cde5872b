"""Calling functions: each goes to the server of its scope, many at once, and refusals are cured.

What the server certainly did not do is asked again: a slot that moved or is moving, functions that
are gone. What may or may not have happened is never repeated here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from flowfabric.errors import FlowFabricError, StoreUnavailable
from flowfabric.store.trips import Trips
from flowfabric.store.valkey.address import Place
from flowfabric.store.valkey.library import PROTOCOL
from flowfabric.store.valkey.link import Cell, Reply, ReplyError, pack
from flowfabric.store.valkey.network import Network
from flowfabric.store.valkey.trouble import Remedy, is_passing, remedy, unavailable

PAUSE_SECONDS = (0.005, 0.25)
WAIT_MS = 2_000


class Call(NamedTuple):
    """One request and the scope whose server gets it."""

    scope: str
    request: bytes
    writes: bool = False


def function(name: str, scope: str, *cells: Cell, protocol: int = PROTOCOL) -> Call:
    """A function that writes."""
    return Call(scope, pack("FCALL", f"ff{protocol}_{name}", 1, scope, *cells), writes=True)


def reading(name: str, scope: str, *cells: Cell, protocol: int = PROTOCOL) -> Call:
    """A function that only reads."""
    return Call(scope, pack("FCALL_RO", f"ff{protocol}_{name}", 1, scope, *cells))


def command(scope: str, *cells: Cell, writes: bool = False) -> Call:
    return Call(scope, pack(*cells), writes)


class Caller:
    """Sends calls over a network. `on_load` looks whether functions may be loaded again."""

    def __init__(self, network: Network, on_load: Callable[[], Awaitable[None]]) -> None:
        self.network = network
        self._on_load = on_load
        self.trips = Trips()

    async def one(self, call: Call) -> Reply:
        return (await self.all([call]))[0]

    async def all(self, calls: Sequence[Call]) -> list[Reply]:
        """Replies in the order of the calls; the first that cannot be cured is raised."""
        replies: list[Reply] = [None] * len(calls)
        left = list(range(len(calls)))
        patience = Patience(self.network.address.timeout_seconds)
        while left:
            refused = await self._round(calls, left, replies)
            if not refused:
                return replies
            await self._cure(calls, refused, patience)
            left = list(refused)
        return replies

    async def _round(
        self, calls: Sequence[Call], left: Sequence[int], replies: list[Reply]
    ) -> dict[int, ReplyError | StoreUnavailable]:
        """Ask each server for its part, all at once: that is one wait, wherever the slots are.
        Answers which calls were certainly not done, and why."""
        parts: dict[Place, list[int]] = {}
        for position in left:
            parts.setdefault(self.network.place(calls[position].scope), []).append(position)
        refused: dict[int, ReplyError | StoreUnavailable] = {}
        flights: list[tuple[list[int], asyncio.Future[list[Reply]]]] = []
        sent = 0
        for place, positions in parts.items():
            try:
                link = await self.network.link(place)
            except StoreUnavailable as error:
                if not self.network.address.is_cluster:
                    raise
                refused |= dict.fromkeys(positions, error)
                continue
            requests = self._requests(calls, positions)
            sent += len(requests)
            flights.append((positions, link.ask(requests)))
        if flights:
            self.trips.add(statements=sent)
        problem: BaseException | None = None
        for positions, flight in flights:
            try:
                answers = await flight
            except FlowFabricError as error:
                problem = problem or error
                continue
            problem = problem or self._unconfirmed(answers, positions)
            for position, reply in zip(positions, answers, strict=False):
                if isinstance(reply, ReplyError):
                    refused[position] = reply
                replies[position] = reply
        if problem is not None:
            raise problem
        return refused

    def _requests(self, calls: Sequence[Call], positions: Sequence[int]) -> list[bytes]:
        requests = [calls[position].request for position in positions]
        replicas = self.network.address.replicas
        if replicas and any(calls[position].writes for position in positions):
            requests.append(pack("WAIT", replicas, WAIT_MS))
        return requests

    def _unconfirmed(
        self, answers: Sequence[Reply], positions: Sequence[int]
    ) -> StoreUnavailable | None:
        """What replicas did not get in time may be lost with the primary: not an answer yet."""
        wanted = self.network.address.replicas
        if len(answers) == len(positions):
            return None
        got = answers[-1]
        if isinstance(got, int) and got >= wanted:
            return None
        return StoreUnavailable(
            f"{got if isinstance(got, int) else 0} of {wanted} replicas confirmed the write",
            hint="check the replicas, or lower ?replicas=",
        )

    async def _cure(
        self,
        calls: Sequence[Call],
        refused: dict[int, ReplyError | StoreUnavailable],
        patience: Patience,
    ) -> None:
        remedies = {
            position: remedy(error) if isinstance(error, ReplyError) else Remedy.ROUTE
            for position, error in refused.items()
        }
        for position, error in refused.items():
            if remedies[position] is Remedy.NONE or not patience.is_left:
                raise self._told(calls[position], error)
        if Remedy.LOAD in remedies.values():
            await self._on_load()
            await self._load(patience)
        if Remedy.ROUTE in remedies.values():
            await self._reroute(calls, refused, patience)
        await patience.pause()

    async def _load(self, patience: Patience) -> None:
        try:
            await self.network.load()
        except StoreUnavailable as error:
            if not is_passing(error) or not patience.is_left:
                raise

    def _told(self, call: Call, error: ReplyError | StoreUnavailable) -> StoreUnavailable:
        if isinstance(error, StoreUnavailable):
            return error
        return unavailable(error, self.network.place(call.scope))

    async def _reroute(
        self,
        calls: Sequence[Call],
        refused: dict[int, ReplyError | StoreUnavailable],
        patience: Patience,
    ) -> None:
        """Another server may serve the slot by now; of a single server nothing else is known."""
        if self.network.address.is_cluster:
            try:
                await self.network.refresh()
            except StoreUnavailable:
                if not patience.is_left:
                    raise
            return
        position, error = next(iter(refused.items()))
        (await self.network.link(self.network.places()[0])).lose(
            StoreUnavailable("the server no longer takes writes")
        )
        raise self._told(calls[position], error)


class Patience:
    """How long to go on curing, with pauses that double."""

    def __init__(self, seconds: float) -> None:
        self._until = asyncio.get_running_loop().time() + seconds
        self._pause, self._longest = PAUSE_SECONDS

    @property
    def is_left(self) -> bool:
        return asyncio.get_running_loop().time() < self._until

    async def pause(self) -> None:
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 2, self._longest)
