"""Calls of many callers joined into few calls to the store.

A lone call goes out at once. While it is under way others gather, and go out together when it has
come back: the busier it is, the larger the batches, and nobody waits for a timer. Where several
may be under way, what has gathered goes out beside another call only when it is much: few calls of
many cost less than many calls of few.
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
    or with its error. Up to `in_flight` calls of it are under way at a time."""

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
        self._waiting: list[tuple[T, int, asyncio.Future[R]]] = []
        self._weight = 0
        self._flights: set[asyncio.Task[None]] = set()
        self._is_starting = False

    def submit(self, item: T) -> asyncio.Future[R]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        weight = self._weigh(item)
        self._waiting.append((item, weight, future))
        self._weight += weight
        if not self._is_starting and self._is_due():
            self._is_starting = True
            loop.call_soon(self._launch)
        return future

    async def drain(self) -> None:
        """Until everything that was submitted has been answered."""
        while self._waiting or self._flights:
            self._launch()
            await asyncio.wait(self._flights)

    def _is_due(self) -> bool:
        """Whether a call is to go out now."""
        if not self._flights:
            return bool(self._waiting)
        is_much = self._weight * self._in_flight >= self._limit
        return is_much and len(self._flights) < self._in_flight

    def _launch(self) -> None:
        self._is_starting = False
        while self._is_due():
            flight = asyncio.get_running_loop().create_task(self._fly(self._next()))
            self._flights.add(flight)
            flight.add_done_callback(self._landed)

    def _next(self) -> list[tuple[T, asyncio.Future[R]]]:
        """Those that go together, in their order."""
        batch: list[tuple[T, asyncio.Future[R]]] = []
        room = self._limit
        for item, weight, future in self._waiting:
            room -= weight
            if room < 0 and batch:
                break
            batch.append((item, future))
            self._weight -= weight
        del self._waiting[: len(batch)]
        return batch

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
