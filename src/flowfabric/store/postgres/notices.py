"""Wake-ups between processes: NOTIFY inside every writing statement, one connection that listens.

A notice names the store that sent it, so that it wakes the others only; what it says becomes a
hint. Notices may be lost with the connection: after each new one, everything may have changed.
"""

from __future__ import annotations

import asyncio
from hashlib import sha256

import msgspec

from flowfabric.core.ids import FlowId
from flowfabric.core.model import ANY_ROUTE
from flowfabric.errors import FlowFabricError
from flowfabric.loggers import logger_of
from flowfabric.store.hints import Hint, Hints
from flowfabric.store.notices import few_routes
from flowfabric.store.postgres.address import Address
from flowfabric.store.postgres.connections import CONNECT_SECONDS, open_connection
from flowfabric.store.postgres.problems import DRIVER_ERRORS
from flowfabric.store.trips import Trips

logger = logger_of("flowfabric.store")

TROUBLE: tuple[type[Exception], ...] = (FlowFabricError, *DRIVER_ERRORS)
KEEPALIVE_SECONDS = 30.0
PAUSES_SECONDS = (0.1, 0.5, 2.0, 5.0)
# More flows than these are not named: a notice must be short.
FLOWS_MAX = 64

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[str]).decode


def channel_of(schema: str) -> str:
    """A name that fits into an identifier, however long that of the schema is."""
    return f"flowfabric_{sha256(schema.encode()).hexdigest()[:24]}"


def notice_of(sender: str, hint: Hint) -> str:
    """What others need to know of a hint; empty if it is nothing."""
    told = "e" if hint.ended or hint.fenced or hint.flows else ""
    ready = _encode(few_routes(hint.ready)).decode() if hint.ready else ""
    due = "" if hint.due_ms is None else str(hint.due_ms)
    turn = "" if hint.turn_ms is None else str(hint.turn_ms)
    flows = ",".join(hint.flows) if len(hint.flows) <= FLOWS_MAX else ""
    is_news = told or due or turn or ready
    return f"{sender} {told} {due} {turn} {flows} {ready}" if is_news else ""


def hint_of_notice(sender: str, notice: str) -> Hint:
    """What a notice means here; nothing if it is our own."""
    who, _, rest = notice.partition(" ")
    if who == sender:
        return Hint()
    told, due, turn, named, ready = (*rest.split(" ", 4), "", "", "", "", "")[:5]
    flows = tuple(map(FlowId, named.split(","))) if named else ()
    # Who ended is not said: whoever waits for that must look.
    return Hint(
        ready=_routes(ready),
        due_ms=_time(due),
        foreign="e" in told,
        flows=flows,
        turn_ms=_time(turn),
    )


def _routes(text: str) -> tuple[str, ...]:
    """What cannot be read may be any."""
    try:
        return tuple(_decode(text)) if text else ()
    except msgspec.MsgspecError:
        return (ANY_ROUTE,)


def _time(text: str) -> int | None:
    return int(text) if text.isdecimal() and text.isascii() else None


class Ear:
    """The listening connection and the task that keeps it."""

    def __init__(self, address: Address, sender: str, hints: Hints, trips: Trips) -> None:
        self._address = address
        self._sender = sender
        self._hints = hints
        self._trips = trips
        self._channel = channel_of(address.schema)
        self._task = asyncio.get_running_loop().create_task(
            self._listen(), name="flowfabric-listener"
        )

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _listen(self) -> None:
        failures = 0
        while True:
            try:
                await self._listen_once()
                failures = 0
            except TROUBLE as error:
                logger.warning("cannot listen for notifications", extra={"error": str(error)})
            pause = PAUSES_SECONDS[min(failures, len(PAUSES_SECONDS) - 1)]
            failures += 1
            await asyncio.sleep(pause)

    async def _listen_once(self) -> None:
        """Until the connection ends."""
        with self._trips.waiting():
            connection = await open_connection(self._address, self._trips)
        ended = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: ended.set())
            with self._trips.waiting():
                await connection.add_listener(self._channel, self._hear)
            self._hints.publish(Hint(foreign=True))
            while not await _happens(ended, KEEPALIVE_SECONDS):
                with self._trips.waiting():
                    async with asyncio.timeout(CONNECT_SECONDS):
                        await connection.run("SELECT 1")
        finally:
            connection.terminate()

    def _hear(self, connection: object, pid: int, channel: str, payload: object) -> None:
        del connection, pid, channel
        self._hints.publish(hint_of_notice(self._sender, str(payload)))


async def _happens(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
