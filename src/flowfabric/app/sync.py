"""SyncApp: the verbs of an app for programs without an event loop, `app.sync`.

One event loop in a thread of its own serves all threads of the process. A forked child starts one
of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, ParamSpec, TypeVar, overload

from flowfabric.client.finding import States
from flowfabric.client.loop_thread import LoopThread
from flowfabric.client.sync_handles import SyncFlowHandle, SyncFound, SyncHandle, SyncListing
from flowfabric.core.duration import Span
from flowfabric.core.flow.model import Flow, FlowState
from flowfabric.core.registry import WorkerRecord
from flowfabric.engine.lane_reading import LaneRecord
from flowfabric.graph import Graph
from flowfabric.task import Call, Task

if TYPE_CHECKING:
    from flowfabric.app.app import App

P = ParamSpec("P")
R = TypeVar("R")


class SyncApp:
    """The same names as of `App`; each call waits and answers what the other would be awaited for.
    Safe to call from any thread, also from a plain `def` task and after a fork."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._loop = LoopThread(app._is_running_in)

    def start(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]:
        """Submit a call of a task; options go through `task.options(...)`."""
        return SyncHandle(self._loop.run(task.start(*args, **kwargs)), self._loop)

    def start_many(self, calls: Iterable[Call[R]]) -> list[SyncHandle[R]]:
        """Submit many at once: `app.sync.start_many(task.bind(n) for n in range(1000))`."""
        handles = self._loop.run(self._app.start_many(calls))
        return [SyncHandle(handle, self._loop) for handle in handles]

    def submit(self, graph: Graph, *, idempotency_key: str | None = None) -> SyncFlowHandle:
        """Submit a graph as a whole."""
        run = self._loop.run(graph.submit(idempotency_key=idempotency_key))
        return SyncFlowHandle(run, self._loop)

    @overload
    def handle(self, id: str) -> SyncHandle[object]: ...
    @overload
    def handle(self, id: str, task: Task[..., R]) -> SyncHandle[R]: ...

    def handle(
        self, id: str, task: Task[..., R] | None = None
    ) -> SyncHandle[R] | SyncHandle[object]:
        """The handle of an execution that was started elsewhere or earlier."""
        if task is None:
            return SyncHandle(self._app.handle(id), self._loop)
        return SyncHandle(self._app.handle(id, task), self._loop)

    def flow_handle(self, id: str) -> SyncFlowHandle:
        """The handle of a flow that was submitted elsewhere or earlier."""
        return SyncFlowHandle(self._app.flow_handle(id), self._loop)

    def find(
        self,
        *,
        state: States | None = None,
        task: str | None = None,
        lane: str | None = None,
        tags: Mapping[str, str] | None = None,
        since: datetime | Span | None = None,
        flow: str | None = None,
    ) -> SyncFound:
        """Executions that match every condition, as `App.find` finds them."""
        found = self._app.find(state=state, task=task, lane=lane, tags=tags, since=since, flow=flow)
        return SyncFound(found, self._loop)

    def flows(
        self,
        *,
        name: str | None = None,
        state: FlowState | str | None = None,
        namespace: str | None = None,
    ) -> SyncListing[Flow]:
        """Flows in the order of their beginning, as `App.flows` lists them."""
        listing = self._app.flows(name=name, state=state, namespace=namespace)
        return SyncListing(listing, self._loop)

    def workers(self) -> SyncListing[WorkerRecord]:
        """The live workers of this namespace."""
        return SyncListing(self._app.workers(), self._loop)

    def lanes(self) -> SyncListing[LaneRecord]:
        """The lanes of this store with their states and what is ready in each."""
        return SyncListing(self._app.lanes(), self._loop)

    @contextmanager
    def running(
        self,
        *,
        lanes: Iterable[str] = (),
        worker: str | None = None,
        concurrency: int | None = None,
    ) -> Iterator[SyncApp]:
        """Engine and worker in the background while the block runs; then drain."""
        block = self._app.running(lanes=lanes, worker=worker, concurrency=concurrency)
        self._loop.run(block.__aenter__())
        try:
            yield self
        finally:
            self._loop.run(block.__aexit__(None, None, None))

    def close(self) -> None:
        """Let go of the store, unless the app is used elsewhere in this process, and end the
        thread. Both begin anew with the next call."""
        if self._loop.is_running:
            self._loop.run(self._app._leave())
            self._loop.close()
