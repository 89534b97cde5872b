"""Calls of many callers joined into few calls to the store.

A lone call goes out at once. While it is under way others gather, and go out together when it has
come back: the busier it is, the larger the batches, and nobody waits for a timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def _one(_: object) -> int:
    return 1


class Batcher(Generic[T, R]):
    """`run` gets items that weigh up to `limit` together, or one, and answers each, with a value
    or with its error."""

    def __init__(
        self,
        run: Callable[[Sequence[T]], Awaitable[Sequence[R | Exception]]],
        *,
        limit: int,
        in_flight: int = 1,
        weigh: Callable[[T], int] = _one,
    ) -> None:
        self._run = run
        self._limit = limit
        self._weigh = weigh
        self._in_flight = in_flight
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._flights: set[asyncio.Task[None]] = set()

    def submit(self, item: T) -> asyncio.Future[R]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._waiting.append((item, future))
        if len(self._waiting) == 1 and len(self._flights) < self._in_flight:
            loop.call_soon(self._launch)
        return future

    async def drain(self) -> None:
        """Until everything that was submitted has been answered."""
        while self._waiting or self._flights:
            self._launch()
            await asyncio.wait(self._flights)

    def _launch(self) -> None:
        while self._waiting and len(self._flights) < self._in_flight:
            count = self._fitting()
            batch, self._waiting = self._waiting[:count], self._waiting[count:]
            flight = asyncio.get_running_loop().create_task(self._fly(batch))
            self._flights.add(flight)
            flight.add_done_callback(self._landed)

    def _fitting(self) -> int:
        """How many of those that wait go together, in their order."""
        room = self._limit
        for count, (item, _) in enumerate(self._waiting):
            room -= self._weigh(item)
            if room < 0:
                return max(count, 1)
        return len(self._waiting)

    def _landed(self, flight: asyncio.Task[None]) -> None:
        self._flights.discard(flight)
        self._launch()

    async def _fly(self, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            answers = await self._run([item for item, _ in batch])
        except BaseException as error:
            for _, future in batch:
                _fail(future, error)
            if not isinstance(error, Exception):
                raise
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if isinstance(answer, Exception):
                _fail(future, answer)
            elif not future.done():
                future.set_result(answer)


def _fail(future: asyncio.Future[R], error: BaseException) -> None:
    if future.done():
        return
    if isinstance(error, asyncio.CancelledError):
        future.cancel()
    else:
        future.set_exception(error)
