"""App: the tasks of a program, and the place where store, engine, worker and client meet."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from types import MappingProxyType
from typing import Concatenate, Literal, ParamSpec, TypeVar, overload

from flowfabric.app.signals import signals_set
from flowfabric.app.sync import SyncApp
from flowfabric.client.client import Client, Request
from flowfabric.client.finding import Found, States, conditions
from flowfabric.client.flow_handle import FlowHandle
from flowfabric.client.handle import Handle
from flowfabric.client.listing import Listing
from flowfabric.client.pages import flow_pages, lane_pages, worker_pages
from flowfabric.client.plain import decode_plain
from flowfabric.core import names
from flowfabric.core.carried import Carrier
from flowfabric.core.duration import Span, duration_ms
from flowfabric.core.exact import word
from flowfabric.core.flow.model import Flow, FlowState
from flowfabric.core.flow.views import FlowQuery
from flowfabric.core.ids import parse_execution_id, parse_flow_id
from flowfabric.core.policy import RetryPolicy
from flowfabric.core.registry import WorkerRecord
from flowfabric.engine.duties import Duties
from flowfabric.engine.engine import LEASE_TTL_FLOOR_MS, Engine
from flowfabric.engine.intervals import Intervals, seconds_of
from flowfabric.engine.janitor import CHORES, NO_INTERVALS
from flowfabric.engine.lane_reading import LaneRecord
from flowfabric.engine.supervisor import Health
from flowfabric.errors import InvalidInput, Refused
from flowfabric.forking import begin_here_and_in_children
from flowfabric.graph import Graph
from flowfabric.keeping import Keep, retention_policy
from flowfabric.loggers import logger_of
from flowfabric.printing import public_url
from flowfabric.registering import Definitions, Register, one_name, policy_text
from flowfabric.settings import default_namespace, default_store
from flowfabric.store import Store, open_store
from flowfabric.task import AsyncTask, Call, Home, SyncTask, Task, request_of
from flowfabric.worker.child.importing import refuse_work_while_importing
from flowfabric.worker.context import Context
from flowfabric.worker.conversion import Conversion
from flowfabric.worker.type_hooks import TypeHook
from flowfabric.worker.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")

logger = logger_of("flowfabric.app")

_DEFAULT_LANE = "default"


class App:
    """A set of tasks on one store.

    `url` names the store: `sqlite:///file.db` (durable, for several processes) or `memory://`
    (lost with the process). Omitted, `url` and `namespace` are those of the project:
    `FLOWFABRIC_STORE` and `FLOWFABRIC_NAMESPACE`, then `flowfabric.toml`. The store is opened at
    its first use. `intervals`: how often each sweeper runs, by name; 0 switches it off.
    `carrier`: takes context variables (trace ids, a tenant) from the submitter to the attempt.
    `types`: hooks for your own types as arguments and results.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        concurrency: int = 100,
        lease_ttl: Span = "30s",
        drain: Span = "30s",
        retention: Keep = "1d",
        intervals: Intervals = NO_INTERVALS,
        store: Store | None = None,
        carrier: Carrier | None = None,
        types: Iterable[TypeHook] = (),
    ) -> None:
        self._conversion = Conversion(types)
        url = default_store() if url is None else _text(url, "url")
        namespace = default_namespace() if namespace is None else namespace
        self.engine = Engine(store or open_store(url), namespace=namespace)
        self._shown_store = type(store).__name__ if store else public_url(url)
        # Memory is not shared by URL, and a store that is given is known by itself.
        is_shared = store is None and not url.startswith("memory:")
        place = (url if is_shared else self.engine.store, namespace)
        self._home = Home(self.connect, place, self._shown_store)
        self._definitions = Definitions(self._home, _DEFAULT_LANE, self._conversion, carrier)
        self._handlers, self._lanes = self._definitions.handlers, self._definitions.lanes
        self._concurrency = _positive(concurrency, "concurrency")
        self._ttl_ms = _ttl(lease_ttl)
        self._drain_ms = duration_ms(drain, "drain")
        self._retention = retention_policy(retention)
        self._carrier = carrier
        self._intervals = dict(intervals)
        self.sync = SyncApp(self)
        seconds_of(self._intervals, CHORES)
        begin_here_and_in_children(self._begin)

    def _begin(self) -> None:
        # What waits belongs to one event loop, and each loop has a client of its own.
        self._clients: dict[asyncio.AbstractEventLoop, Client] = {}
        self._openings: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}
        self._is_open = False
        self._duties: Duties | None = None
        self._is_running = False
        self._working_in: asyncio.AbstractEventLoop | None = None
        self._is_stopping = False
        self._halted = asyncio.Event()

    # -- defining ---------------------------------------------------------------------------

    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Coroutine[object, None, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> SyncTask[P, R]: ...
    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[object, None, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def task(
        self,
        called: str | None = None,
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
        retention: Keep | None = None,
        isolate: Literal["process"] | None = None,
    ) -> Register: ...

    def task(
        self,
        function: object = None,
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
        retention: Keep | None = None,
        isolate: Literal["process"] | None = None,
    ) -> object:
        """Register a function, sync or async, under its name or another: `@app.task`,
        `@app.task("name")`, `@app.task(retries=3)`.

        `retries`: how often to try again after a failure, with growing pauses, or a policy.
        `attempt_timeout`: how long one attempt may take; then the execution is `expire`d or the
        attempt is `retry`ed, by `on_attempt_timeout`. `retention`: how long an execution is kept
        after it ended ("7d", or {"failed": "30d"}), unless it is a member of a flow.
        `isolate="process"`: run it in a child process, which a timeout or a cancel can end.
        """
        policy = policy_text(
            retries=retries,
            attempt_timeout=attempt_timeout,
            on_attempt_timeout=on_attempt_timeout,
            max_reclaims=max_reclaims,
            max_replays=max_replays,
            retention=retention_policy(retention, self._retention),
        )
        terms = Request(
            kind="",
            payload=b"",
            lane=names.lane_name(lane),
            policy=policy,
            priority=names.priority(priority),
        )
        if function is None or isinstance(function, str):
            return Register(self._definitions, one_name(function, name), terms, isolate)
        return self._definitions.add(name, function, terms, isolate)

    @property
    def tasks(self) -> Mapping[str, Task[..., object]]:
        """The tasks of this app by their names."""
        return MappingProxyType(self._definitions.tasks)

    def graph(
        self,
        name: str,
        *,
        deadline: datetime | Span | None = None,
        retention: Keep | None = None,
    ) -> Graph:
        """A flow that is known in advance: add nodes, then submit it as a whole.

        With a `deadline` (a span from its submit, or a datetime with a time zone), what has not
        ended by then is cancelled. `retention`: how long the whole
        flow is kept after its last member ended.
        """
        keep = retention_policy(retention, self._retention)
        return Graph(name, self._home, deadline=deadline, retention=keep)

    # -- starting ---------------------------------------------------------------------------

    async def start_many(self, calls: Iterable[Call[R]]) -> list[Handle[R]]:
        """Submit many at once: `await app.start_many(task.bind(n) for n in range(1000))`."""
        requests = [request_of(call, self._home) for call in calls]
        client = await self.connect()
        return await client.start_many(requests)

    @overload
    def handle(self, id: str) -> Handle[object]: ...
    @overload
    def handle(self, id: str, task: Task[..., R]) -> Handle[R]: ...

    def handle(self, id: str, task: Task[..., R] | None = None) -> Handle[R] | Handle[object]:
        """The handle of an execution that was started elsewhere or earlier.

        With its task the result has the task's types, without it is plain JSON.
        """
        checked = parse_execution_id(id)
        if task is None:
            return Handle(checked, self.connect, decode_plain)
        return Handle(checked, self.connect, task.handler.result.decode)

    def flow_handle(self, id: str) -> FlowHandle:
        """The handle of a flow that was submitted elsewhere or earlier."""
        return FlowHandle(parse_flow_id(id), self.connect, counts=lambda: self.engine.counts)

    # -- listing ----------------------------------------------------------------------------

    def find(
        self,
        *,
        state: States | None = None,
        task: str | None = None,
        lane: str | None = None,
        tags: Mapping[str, str] | None = None,
        since: datetime | Span | None = None,
        flow: str | None = None,
    ) -> Found:
        """Executions of this namespace that match every condition, in the order of their ids:
        `async for e in app.find(state="failed", since="1h")`; `await` collects them in a list.

        `state`: a word of `PublicState`, or several. `since`: submitted within a span, or since a
        datetime with a time zone. `flow`: members of this flow. The answer also counts, cancels,
        replays and purges what matches.
        """
        wanted = conditions(state=state, task=task, lane=lane, tags=tags, since=since, flow=flow)
        return Found(self.connect, wanted)

    def flows(
        self,
        *,
        name: str | None = None,
        state: FlowState | str | None = None,
        namespace: str | None = None,
    ) -> Listing[Flow]:
        """Flows in the order of their ids, which is that of their beginning.

        `state`: `open` or `cancelled`; a flow whose members have all ended is open for more.
        `namespace`: another than the app's own.
        """
        space = self.engine.namespace if namespace is None else namespace
        query = FlowQuery(
            namespace=names.namespace_name(space),
            name=name,
            states=() if state is None else (word(FlowState, state, "state"),),
        )
        return Listing(lambda: flow_pages(self.connect, query))

    def workers(self) -> Listing[WorkerRecord]:
        """The live workers of this namespace: where each runs, what it serves, how busy it is."""
        return Listing(lambda: worker_pages(self.connect))

    def lanes(self) -> Listing[LaneRecord]:
        """The lanes of this store with their states, and what is ready in each in this namespace:
        how much, and how old the oldest is."""
        return Listing(lambda: lane_pages(self.connect))

    async def connect(self) -> Client:
        """Open the store, once. Starting a task does this as well."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = Client(self.engine, self._carrier, connect=self.connect)
            self._openings[loop] = asyncio.Lock()
            self._forget_closed_loops()
        if not self._is_open:
            await self._open(self._openings[loop])
        return client

    def _forget_closed_loops(self) -> None:
        for loop in [loop for loop in self._clients if loop.is_closed()]:
            del self._clients[loop], self._openings[loop]
            # Whatever the store had bound to that loop has ended with it.
            self._is_open = False

    async def _open(self, opening: asyncio.Lock) -> None:
        async with opening:
            if self._is_open:
                return
            refuse_work_while_importing()
            try:
                await self.engine.open()
            except BaseException:
                await self.engine.close()
                raise
            self._is_open = True

    async def close(self) -> None:
        """Close the store. The app can be used again afterwards."""
        if self._is_running:
            raise Refused("the app is running", hint="leave the `running()` block instead")
        await self._close()

    async def _close(self) -> None:
        here = asyncio.get_running_loop()
        clients, self._clients, self._openings = self._clients, {}, {}
        for loop, client in clients.items():
            if loop is here:
                await client.close()
            elif not loop.is_closed():
                asyncio.run_coroutine_threadsafe(client.close(), loop)
        self._is_open = False
        await self.engine.close()

    async def _leave(self) -> None:
        """Let go of what this event loop uses; of the store as well, if nothing else uses it."""
        here = asyncio.get_running_loop()
        self._openings.pop(here, None)
        if client := self._clients.pop(here, None):
            await client.close()
        self._forget_closed_loops()
        if not self._clients and not self._is_running:
            await self._close()

    # -- running ----------------------------------------------------------------------------

    @asynccontextmanager
    async def running(
        self,
        *,
        lanes: Iterable[str] = (),
        worker: str | None = None,
        concurrency: int | None = None,
    ) -> AsyncIterator[App]:
        """Run an engine and a worker in this process during the block; then drain and close.

        `lanes`: which to serve; by default the lanes of this app's tasks. `concurrency`: how
        many attempts run at once; by default as the app says.
        """
        slots = self._concurrency if concurrency is None else _positive(concurrency, "concurrency")
        worker_ = Worker(
            self.engine,
            self._handlers,
            name=worker or f"{socket.gethostname()}-{os.getpid()}",
            lanes=_several(lanes, "lanes") or tuple(self._lanes),
            slots=slots,
            ttl_ms=self._ttl_ms,
            drain_seconds=self._drain_ms / 1000,
            store=self._shown_store,
            carrier=self._carrier,
        )
        duties = Duties(self.engine, self._intervals)
        await self.connect()
        if self._is_running:
            raise Refused("the app is already running", hint="enter `running()` once per process")
        self._is_running = True
        self._working_in = asyncio.get_running_loop()
        self._duties = duties
        duties.start()
        working = asyncio.create_task(worker_.run(), name="flowfabric-worker")
        working.add_done_callback(self._worker_ended)
        try:
            yield self
        finally:
            self._is_stopping = True
            worker_.stop()
            try:
                await _ended(working, duties.stop(self._drain_ms / 1000))
            finally:
                self._duties = None
                self._is_running = self._is_stopping = False
                self._working_in = None
                await self._close()
        working.result()

    def _is_running_in(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the worker of this app runs in this event loop now."""
        return self._working_in is loop

    def health(self) -> list[Health]:
        """The state of each background duty of this process; empty while the app is not running."""
        return self._duties.health() if self._duties else []

    def _worker_ended(self, working: asyncio.Task[None]) -> None:
        """It does not end by itself; if it does, it is told at once, and `work` ends with it."""
        if not self._is_stopping and not working.cancelled():
            logger.critical(
                "%s ended unexpectedly", working.get_name(), exc_info=working.exception()
            )
            self._halted.set()

    async def work(
        self,
        *,
        lanes: Iterable[str] = (),
        worker: str | None = None,
        concurrency: int | None = None,
    ) -> None:
        """Run until SIGTERM or SIGINT, then drain: the body of a worker process."""
        # A new one each time: an event belongs to the event loop that first waits for it.
        self._halted = asyncio.Event()
        async with self.running(lanes=lanes, worker=worker, concurrency=concurrency):
            with signals_set(self._halted):
                await self._halted.wait()


async def _ended(working: asyncio.Task[None], stopping: Coroutine[None, None, object]) -> None:
    """Until both have ended by themselves; whoever is in more of a hurry cancels this."""
    both: list[asyncio.Task[object]] = [working, asyncio.create_task(stopping)]
    try:
        await asyncio.wait(both)
    except asyncio.CancelledError:
        for each in both:
            each.cancel()
        await asyncio.wait(both)
        raise


def _text(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(
            f"expected text, got {type(value).__name__}",
            field=field,
            hint="use sqlite:///file.db or memory://",
        )
    return value


def _several(names: Iterable[str], field: str) -> tuple[str, ...]:
    if isinstance(names, str):
        raise InvalidInput(
            f"expected a list of names, got {names!r}", field=field, hint=f"pass [{names!r}]"
        )
    return tuple(names)


def _positive(value: object, field: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidInput(
            f"{field} must be at least 1 (got {value!r})", field=field, hint="use 1 or more"
        )
    return value


def _ttl(value: Span) -> int:
    ttl_ms = duration_ms(value, "lease_ttl")
    if ttl_ms < LEASE_TTL_FLOOR_MS:
        raise InvalidInput(
            f"lease_ttl must be at least {LEASE_TTL_FLOOR_MS // 1000} s (got {value!r})",
            field="lease_ttl",
            hint="use a longer one",
        )
    return ttl_ms
