"""Connections of one event loop, handed out one verb at a time.

A pool of our own, because the driver's asks the server to reset a session each time it is given
back: a second round trip for every verb. Our statements leave nothing behind in a session. What
goes wrong is told apart by what may have happened: a read is tried again, a write whose connection
was lost is not, because only the caller knows how to repeat it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from flowfabric.errors import FlowFabricError, StoreUnavailable
from flowfabric.store.postgres.address import Address
from flowfabric.store.postgres.driver import Connection, InterfaceError, connect, errors
from flowfabric.store.postgres.problems import (
    DRIVER_ERRORS,
    LOST,
    NOT_YET,
    UNDONE,
    require_usable,
    strange_server,
    unavailable,
)
from flowfabric.store.trips import Trips

T = TypeVar("T")
Work = Callable[[Connection], Awaitable[T]]

CONNECTIONS = 8
CONNECT_SECONDS = 5.0
COMMAND_SECONDS = 30.0
PATIENCE_SECONDS = 5.0
PAUSE_SECONDS = 0.05
READ_TRIES = 3
UNDONE_TRIES = 20
CACHED_STATEMENTS = 1_000

# Every statement here is meant to go by an index, row by row. A plan is made once for all values,
# maybe while a table is still empty: the planner must not be led by what it does not know yet.
SETTINGS = {
    "application_name": "flowfabric",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
# Behind a transaction pooler a session is another one each time, so they are said each time.
POOLED_SETTINGS = "; ".join(
    f"SET LOCAL {name} = {value}" for name, value in SETTINGS.items() if name != "application_name"
)


class Undone(Exception):
    """A guard does not hold: the transaction is undone, and the answer is no."""


async def open_connection(address: Address, trips: Trips | None = None) -> Connection:
    """A connection to a server that we can use, or why there is none, within seconds."""
    connection = await _connected(address, trips)
    try:
        require_usable(connection, address.shown)
    except BaseException:
        connection.terminate()
        raise
    return connection


async def _connected(address: Address, trips: Trips | None) -> Connection:
    try:
        return await connect(
            address.dsn,
            trips,
            seconds=CONNECT_SECONDS,
            cached=0 if address.pooled else CACHED_STATEMENTS,
            settings={} if address.pooled else SETTINGS,
        )
    except InterfaceError:
        raise
    except ValueError as error:
        problem = str(error)
    # Outside of the handler: what the driver could not read may hold the password.
    raise strange_server(problem, address.shown)


@asynccontextmanager
async def transaction(connection: Connection, first: str = "") -> AsyncIterator[None]:
    """All of what is inside, or nothing; part of the one that has begun already.

    `first` is run before anything else, without a trip of its own if the transaction begins here.
    """
    if connection.is_in_transaction():
        if first:
            await connection.run(first)
        yield
        return
    await connection.run(f"BEGIN; {first}")
    try:
        yield
    except BaseException:
        # One that was cut off is undone by the server; what cut it is what the caller must hear.
        if connection.is_in_transaction() and not connection.is_closed():
            await connection.run("ROLLBACK")
        raise
    await connection.run("COMMIT")


class Pool:
    """Up to eight connections, and one more for what must not wait."""

    def __init__(self, address: Address, trips: Trips | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self._address = address
        self._trips = trips
        self._slots = asyncio.Semaphore(CONNECTIONS)
        self._reserve = asyncio.Semaphore(1)
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._busy = 0
        self._was_reached = False
        self._quiet = asyncio.Event()
        self._closing = False

    async def read(self, work: Work[T]) -> T:
        """Tried again when the connection is lost: reading twice does no harm."""
        for _ in range(READ_TRIES - 1):
            try:
                return await self._run(work, urgent=False)
            except TimeoutError as error:
                raise unavailable(error, self._address.shown) from error
            except LOST:
                continue
            except DRIVER_ERRORS as error:
                raise unavailable(error, self._address.shown) from error
        return await self.write(work)

    async def write(self, work: Work[T], *, urgent: bool = False) -> T:
        """Tried again only when the server says that nothing was written."""
        for _ in range(UNDONE_TRIES):
            try:
                return await self._run(work, urgent=urgent)
            except UNDONE:
                continue
            except DRIVER_ERRORS as error:
                raise unavailable(error, self._address.shown) from error
        raise StoreUnavailable("the transaction kept conflicting with other transactions")

    async def _run(self, work: Work[T], *, urgent: bool) -> T:
        slots = self._reserve if urgent and self._slots.locked() else self._slots
        async with slots, self._lent() as connection:
            async with asyncio.timeout(COMMAND_SECONDS):
                if not self._address.pooled:
                    return await work(connection)
                async with transaction(connection, POOLED_SETTINGS):
                    return await work(connection)

    @asynccontextmanager
    async def _lent(self) -> AsyncIterator[Connection]:
        if self._closing:
            raise StoreUnavailable("the store is closed")
        self._busy += 1
        connection: Connection | None = None
        try:
            connection = await self._take()
            yield connection
        except BaseException as error:
            if connection is not None:
                self._after(connection, error)
            raise
        else:
            self._idle.append(connection)
        finally:
            self._busy -= 1
            if not self._busy:
                self._quiet.set()

    def _after(self, connection: Connection, error: BaseException) -> None:
        """Keep a connection that only said no; let go of one that is in an unknown state."""
        is_answer = isinstance(error, FlowFabricError | Undone) or (
            isinstance(error, DRIVER_ERRORS)
            and not isinstance(error, (*LOST, errors.ReadOnlySQLTransactionError))
        )
        if is_answer and not connection.is_closed() and not connection.is_in_transaction():
            self._idle.append(connection)
        else:
            self._open.discard(connection)
            connection.terminate()

    async def _take(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
            self._open.discard(connection)
        connection = await self._connect()
        self._open.add(connection)
        return connection

    async def _connect(self) -> Connection:
        """Patient with a server that was there before: it may be restarting.

        What goes wrong here is told at once: nothing was asked yet, and it was tried long enough.
        """
        end = self.loop.time() + (PATIENCE_SECONDS if self._was_reached else 0)
        while True:
            try:
                connection = await open_connection(self._address, self._trips)
            except DRIVER_ERRORS as error:
                is_over = self.loop.time() >= end or self._closing
                if is_over or not isinstance(error, NOT_YET):
                    raise unavailable(error, self._address.shown) from error
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                self._was_reached = True
                return connection

    async def close(self) -> None:
        """Let the verbs that have begun end, then close every connection."""
        self._closing = True
        while self._busy:
            self._quiet.clear()
            await self._quiet.wait()
        await asyncio.gather(*(_closed(connection) for connection in self._open))
        self._open.clear()
        self._idle.clear()

    def abandon(self) -> None:
        """The event loop of these connections is gone, and they with it."""
        self._closing = True
        for connection in self._open:
            if not self.loop.is_closed():
                connection.terminate()
        self._open.clear()
        self._idle.clear()


async def _closed(connection: Connection) -> None:
    try:
        await connection.close(timeout=CONNECT_SECONDS)
    except DRIVER_ERRORS:
        connection.terminate()
