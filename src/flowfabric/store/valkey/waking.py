"""Wake-ups between processes: what a write made possible is published, and heard by others.

One channel for all processes of a store. A message may be lost; whoever listens polls as well.
While nobody else listens, little is said.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from contextlib import suppress

from flowfabric.errors import FlowFabricError, StoreUnavailable
from flowfabric.forking import begin_here_and_in_children
from flowfabric.loggers import logger_of
from flowfabric.store.hints import Hint, Hints
from flowfabric.store.notices import decode_notice, encode_notice, joined
from flowfabric.store.valkey.connecting import connect
from flowfabric.store.valkey.link import Link, Reply, ReplyError, pack
from flowfabric.store.valkey.network import Network

logger = logger_of("flowfabric.store.valkey")

MUTE_SECONDS = 0.05
AGAIN_SECONDS = (0.1, 5.0)
PING_SECONDS = 30.0


class Waking:
    """`say` tells other processes; from the first listener on, theirs are heard."""

    def __init__(self, network: Network, channel: str, hints: Hints) -> None:
        self._network = network
        self._channel = channel
        self._hints = hints
        self._is_open = False
        begin_here_and_in_children(self._begin)

    def _begin(self) -> None:
        self._origin = secrets.token_hex(8)
        self._loops: list[asyncio.AbstractEventLoop] = []
        self._ear: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None
        self._hears = False
        self._muted_until = 0.0
        self._gathered: Hint | None = None
        self._lock = threading.Lock()

    def open(self) -> None:
        self._is_open = True
        if self._hints.is_heard:
            self.listen()

    def listen(self) -> None:
        """Somebody in the running loop wants to hear."""
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._loops.append(loop)
        if self._is_open and self._ear is None:
            self._ear = (loop, loop.create_task(self._run(), name="flowfabric-listener"))

    async def close(self) -> None:
        self._is_open = False
        self._loops.clear()
        if self._ear is None:
            return
        loop, task = self._ear
        if loop is asyncio.get_running_loop():
            task.cancel()
            await asyncio.wait([task])
        else:
            with suppress(RuntimeError):  # its loop is over, and the task with it
                loop.call_soon_threadsafe(task.cancel)

    # -- saying -----------------------------------------------------------------------------

    def say(self, hint: Hint) -> None:
        """Publish without waiting. While nobody else listens, what is said is gathered and said
        now and then: somebody may have begun to listen meanwhile."""
        if hint == Hint():
            return
        left = self._muted_until - time.monotonic()
        if left <= 0:
            self._publish(hint)
            return
        with self._lock:
            is_first = self._gathered is None
            self._gathered = joined(self._gathered or Hint(), hint)
        if is_first:
            asyncio.get_running_loop().call_later(left, self._say_gathered)

    def _say_gathered(self) -> None:
        with self._lock:
            hint, self._gathered = self._gathered, None
        if hint is not None and self._is_open:
            self._publish(hint)

    def _publish(self, hint: Hint) -> None:
        """A hint that cannot be sent now is not worth a connection."""
        link = self._network.ready_link(self._network.place(self._channel))
        if link is not None:
            word = "SPUBLISH" if self._network.address.is_cluster else "PUBLISH"
            flight = link.ask([pack(word, self._channel, encode_notice(self._origin, hint))])
            flight.add_done_callback(self._said)

    def _said(self, flight: asyncio.Future[list[Reply]]) -> None:
        if flight.cancelled() or flight.exception() is not None:
            return
        heard_by = flight.result()[0]
        if isinstance(heard_by, int) and heard_by <= int(self._hears):
            self._muted_until = time.monotonic() + MUTE_SECONDS

    # -- hearing ----------------------------------------------------------------------------

    async def _run(self) -> None:
        pause, longest = AGAIN_SECONDS
        try:
            while True:
                with suppress(FlowFabricError):
                    await self._hear()
                    pause = AGAIN_SECONDS[0]
                self._hears = False
                await asyncio.sleep(pause)
                pause = min(pause * 2, longest)
        finally:
            self._hears = False
            self._ear = None
            self._hand_on()

    def _hand_on(self) -> None:
        """The loop that listened for all has ended: another one goes on."""
        here = asyncio.get_running_loop()
        self._loops = [loop for loop in self._loops if loop is not here and not loop.is_closed()]
        if self._is_open and self._loops:
            with suppress(RuntimeError):
                self._loops[0].call_soon_threadsafe(self.listen)

    async def _hear(self) -> None:
        """Subscribe and stay until the connection is lost."""
        is_cluster = self._network.address.is_cluster
        place = self._network.place(self._channel)
        link, _ = await connect(self._network.address, place, self._take)
        try:
            word = "SSUBSCRIBE" if is_cluster else "SUBSCRIBE"
            (reply,) = await link.ask([pack(word, self._channel)])
            if isinstance(reply, ReplyError):
                await self._network.refresh()
                return
            self._hears = True
            # What was said before we could hear it may have been anything.
            self._hints.publish(Hint(foreign=True))
            await self._stay(link)
        finally:
            link.lose(StoreUnavailable("the listener was closed"))

    async def _stay(self, link: Link) -> None:
        while not link.is_lost:
            try:
                async with asyncio.timeout(PING_SECONDS):
                    await link.gone.wait()
            except TimeoutError:
                await link.ask([pack("PING")])

    def _take(self, reply: list[Reply]) -> None:
        if reply[0] == b"sunsubscribe":
            # The slot of the channel has moved.
            raise StoreUnavailable("the slot of the channel has moved")
        payload = reply[-1]
        if reply[0] not in (b"message", b"smessage") or not isinstance(payload, bytes):
            return
        origin, hint = decode_notice(payload)
        if origin != self._origin:
            self._hints.publish(hint)
