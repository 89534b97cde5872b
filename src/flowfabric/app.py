"""App: the tasks of a program, and the place where store, engine, worker and client meet."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol, TypeVar, overload

from flowfabric.client.client import Client, Request
from flowfabric.client.handle import Handle
from flowfabric.core import names
from flowfabric.core.duration import duration_ms
from flowfabric.core.ids import parse_execution_id
from flowfabric.core.policy import RetryPolicy
from flowfabric.engine.engine import LEASE_TTL_FLOOR_MS, Engine
from flowfabric.engine.timekeeper import Timekeeper
from flowfabric.errors import InvalidInput, Refused
from flowfabric.store import Store, open_store
from flowfabric.task import Call, Span, Task, policy_text
from flowfabric.worker.codec import decode_any
from flowfabric.worker.handler import Handler
from flowfabric.worker.worker import Worker

R = TypeVar("R")

_DEFAULT_LANE = "default"


class Register(Protocol):
    """What `app.task(...)` with options answers: the decorator."""

    @overload
    def __call__(self, function: Callable[..., Awaitable[R]], /) -> Task[R]: ...
    @overload
    def __call__(self, function: Callable[..., R], /) -> Task[R]: ...


class App:
    """A set of tasks on one store.

    `url` says where work is kept: `sqlite:///file.db` (durable, for several processes) or
    `memory://` (gone with the process). Nothing is opened before it is used.
    """

    def __init__(
        self,
        url: str = "sqlite:///flowfabric.db",
        *,
        namespace: str = "default",
        concurrency: int = 100,
        lease_ttl: Span = "30s",
        drain: Span = "30s",
        store: Store | None = None,
    ) -> None:
        self.engine = Engine(store or open_store(url), namespace=namespace)
        self._client: Client | None = None
        self._opening: asyncio.Lock | None = None
        self._handlers: dict[str, Handler] = {}
        self._lanes: dict[str, None] = {_DEFAULT_LANE: None}
        self._concurrency = _positive(concurrency, "concurrency")
        self._ttl_ms = _ttl(lease_ttl)
        self._drain_ms = duration_ms(drain, "drain")
        self._is_running = False

    # -- defining ---------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[..., Awaitable[R]], /) -> Task[R]: ...
    @overload
    def task(self, function: Callable[..., R], /) -> Task[R]: ...
    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        lane: str = _DEFAULT_LANE,
        priority: int = 0,
        retries: int | RetryPolicy | None = None,
        attempt_timeout: Span | None = None,
        on_attempt_timeout: str = "expire",
        max_reclaims: int = 100,
        max_replays: int = 10,
    ) -> Register: ...

    def task(
        self,
        function: Callable[..., object] | None = None,
        /,
        *,
        name: str | None = None,
        lane: str = _DEFAULT_LANE,
        priority: int = 0,
        retries: int | RetryPolicy | None = None,
        attempt_timeout: Span | None = None,
        on_attempt_timeout: str = "expire",
        max_reclaims: int = 100,
        max_replays: int = 10,
    ) -> object:
        """Register a function, sync or async, under its name.

        `retries`: how often to try again after a failure, with growing pauses, or a policy.
        `attempt_timeout`: how long one attempt may take; then the execution is `expire`d or the
        attempt is `retry`ed, by `on_attempt_timeout`.
        """
        policy = policy_text(
            retries=retries,
            attempt_timeout=attempt_timeout,
            on_attempt_timeout=on_attempt_timeout,
            max_reclaims=max_reclaims,
            max_replays=max_replays,
        )

        def register(function: Callable[..., object]) -> Task[object]:
            handler = Handler(names.task_name(name or function.__name__), function)
            if handler.name in self._handlers:
                raise InvalidInput(
                    f"there is a task {handler.name!r} already", field="name", hint="rename one"
                )
            defaults = Request(
                kind=handler.name,
                payload=b"",
                lane=names.lane_name(lane),
                policy=policy,
                priority=names.priority(priority),
            )
            made: Task[object] = Task(handler, self.connect, defaults)
            self._handlers[handler.name] = handler
            self._lanes[defaults.lane] = None
            return made

        return register if function is None else register(function)

    # -- starting ---------------------------------------------------------------------------

    async def start_many(self, calls: Iterable[Call[R]]) -> list[Handle[R]]:
        """Submit many at once: `await app.start_many(task.bind(n) for n in range(1000))`."""
        client = await self.connect()
        return await client.start_many([(call.request, call.decode) for call in calls])

    async def handle(self, id: str, task: Task[R] | None = None) -> Handle[object]:
        """The handle of an execution that was started elsewhere or earlier."""
        client = await self.connect()
        decode = task.handler.result.decode if task else decode_any
        return client.handle(parse_execution_id(id), decode)

    async def connect(self) -> Client:
        """Open the store, once. Starting a task does this by itself."""
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._client is None:
                await self.engine.open()
                self._client = Client(self.engine)
            return self._client

    async def close(self) -> None:
        """Let go of the store. The app can be used again afterwards."""
        if self._client is not None:
            await self._client.close()
            self._client = None
            self._opening = None
            await self.engine.close()

    # -- running ----------------------------------------------------------------------------

    @asynccontextmanager
    async def running(
        self, *, lanes: Iterable[str] = (), worker: str | None = None
    ) -> AsyncIterator[App]:
        """Engine and worker in this process while the block runs; then drain and close.

        `lanes`: which to serve; by default those that the tasks of this app name.
        """
        if self._is_running:
            raise Refused("this app is running already", hint="run it once per process")
        await self.connect()
        self._is_running = True
        timekeeper = Timekeeper(self.engine.store, self.engine.clock)
        worker_ = Worker(
            self.engine,
            self._handlers,
            name=worker or f"{socket.gethostname()}-{os.getpid()}",
            lanes=tuple(lanes) or tuple(self._lanes),
            slots=self._concurrency,
            ttl_ms=self._ttl_ms,
            drain_seconds=self._drain_ms / 1000,
        )
        self.engine.hints.subscribe(timekeeper.hear)
        loop = asyncio.get_running_loop()
        services = [
            loop.create_task(timekeeper.loop.run(), name="flowfabric-timekeeper"),
            loop.create_task(worker_.run(), name="flowfabric-worker"),
        ]
        try:
            yield self
        finally:
            worker_.stop()
            timekeeper.loop.stop()
            await asyncio.wait(services)
            self.engine.hints.unsubscribe(timekeeper.hear)
            self._is_running = False
            await self.close()
        for service in services:
            service.result()

    async def work(self, *, lanes: Iterable[str] = ()) -> None:
        """Run until SIGTERM or SIGINT, then drain: the body of a worker process."""
        stopped = asyncio.Event()
        async with self.running(lanes=lanes):
            with _signals(stopped):
                await stopped.wait()


@contextmanager
def _signals(stopped: asyncio.Event) -> Iterator[None]:
    """Set the event on the first SIGTERM or SIGINT; outside the main thread there are none."""
    loop = asyncio.get_running_loop()
    is_main = threading.current_thread() is threading.main_thread()
    caught = (signal.SIGTERM, signal.SIGINT) if is_main else ()
    before = {number: signal.getsignal(number) for number in caught}
    for number in caught:
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(stopped.set))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _positive(value: object, field: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidInput(f"{value!r} is not a positive number", field=field, hint="1 or more")
    return value


def _ttl(value: Span) -> int:
    ttl_ms = duration_ms(value, "lease_ttl")
    if ttl_ms < LEASE_TTL_FLOOR_MS:
        raise InvalidInput(
            f"{ttl_ms} ms is too short",
            field="lease_ttl",
            hint=f"at least {LEASE_TTL_FLOOR_MS // 1000} s",
        )
    return ttl_ms
