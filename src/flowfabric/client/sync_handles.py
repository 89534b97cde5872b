"""Handles and listings for programs without an event loop: the same names, each call waits.

Nothing is decided here: every method waits for the one of the same name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Generic, TypeVar

from flowfabric.client.bulk import PER_SECOND, Changed
from flowfabric.client.finding import Found, Progress
from flowfabric.client.flow_handle import FlowHandle, Member
from flowfabric.client.handle import Handle
from flowfabric.client.listing import Listing
from flowfabric.client.loop_thread import LoopThread
from flowfabric.core.attempt_record import AttemptRecord
from flowfabric.core.duration import Span
from flowfabric.core.explain import Explanation
from flowfabric.core.flow.cancel import CANCELLED
from flowfabric.core.flow.model import CancelPolicy, Flow
from flowfabric.core.flow.summary import FlowSnapshot
from flowfabric.core.model import Event
from flowfabric.core.states import PublicState, State
from flowfabric.engine.flow_cancelling import Backlog, FlowCancel
from flowfabric.engine.flows import Picture
from flowfabric.engine.reading import Snapshot

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T_co = TypeVar("T_co", covariant=True)


class SyncListing(Generic[T_co]):
    """A `Listing` that is iterated with `for`, or made a list with `list(...)`."""

    def __init__(self, listing: Listing[T_co], loop: LoopThread) -> None:
        self._listing = listing
        self._loop = loop

    def __iter__(self) -> Iterator[T_co]:
        records = aiter(self._listing)
        while (found := self._loop.run(_next(records))) is not None:
            yield found[0]

    def count(self) -> int:
        return self._loop.run(self._listing.count())


async def _next(records: AsyncIterator[R]) -> tuple[R] | None:
    """The next record by itself, so that None can say that there is none left."""
    async for record in records:
        return (record,)
    return None


class SyncFound(SyncListing[Snapshot]):
    """A `Found`: what matches, to be listed, counted and changed."""

    def __init__(self, found: Found, loop: LoopThread) -> None:
        super().__init__(found, loop)
        self._found = found

    def cancel(
        self,
        reason: str = "cancelled by the caller",
        *,
        everything: bool = False,
        per_second: int = PER_SECOND,
        progress: Progress | None = None,
    ) -> Changed:
        return self._loop.run(
            self._found.cancel(
                reason, everything=everything, per_second=per_second, progress=progress
            )
        )

    def replay(
        self,
        reason: str = "",
        *,
        everything: bool = False,
        per_second: int = PER_SECOND,
        progress: Progress | None = None,
    ) -> Changed:
        return self._loop.run(
            self._found.replay(
                reason, everything=everything, per_second=per_second, progress=progress
            )
        )

    def purge(
        self,
        *,
        everything: bool = False,
        per_second: int = PER_SECOND,
        progress: Progress | None = None,
    ) -> Changed:
        return self._loop.run(
            self._found.purge(everything=everything, per_second=per_second, progress=progress)
        )


class SyncHandle(Generic[R_co]):
    """A `Handle`: one execution from the outside."""

    def __init__(self, handle: Handle[R_co], loop: LoopThread) -> None:
        self._handle = handle
        self._loop = loop

    @property
    def id(self) -> str:
        return self._handle.id

    def __repr__(self) -> str:
        return f"SyncHandle({self.id!r})"

    def result(self, timeout: Span | None = None) -> R_co:
        return self._loop.run(self._handle.result(timeout))

    def wait(self, timeout: Span | None = None) -> Snapshot:
        return self._loop.run(self._handle.wait(timeout))

    def status(self) -> Snapshot:
        return self._loop.run(self._handle.status())

    def explain(self) -> Explanation:
        return self._loop.run(self._handle.explain())

    def attempts(self) -> SyncListing[AttemptRecord]:
        return SyncListing(self._handle.attempts(), self._loop)

    def events(self) -> SyncListing[Event]:
        return SyncListing(self._handle.events(), self._loop)

    def cancel(
        self, reason: str = "cancelled by the caller", *, request: str | None = None
    ) -> PublicState:
        return self._loop.run(self._handle.cancel(reason, request=request))

    def replay(
        self, reason: str = "", *, downstream: bool = False, request: str | None = None
    ) -> PublicState:
        return self._loop.run(self._handle.replay(reason, downstream=downstream, request=request))

    def reprioritize(self, priority: int, *, request: str | None = None) -> None:
        return self._loop.run(self._handle.reprioritize(priority, request=request))

    def pause(self, reason: str = "", *, request: str | None = None) -> PublicState:
        return self._loop.run(self._handle.pause(reason, request=request))

    def resume(self, *, request: str | None = None) -> PublicState:
        return self._loop.run(self._handle.resume(request=request))


class SyncFlowHandle:
    """A `FlowHandle`: one flow from the outside."""

    def __init__(self, run: FlowHandle, loop: LoopThread) -> None:
        self._run = run
        self._loop = loop

    @property
    def id(self) -> str:
        return self._run.id

    def __repr__(self) -> str:
        return f"SyncFlowHandle({self.id!r})"

    def __getitem__(self, name: str) -> SyncHandle[object]:
        return SyncHandle(self._run[name], self._loop)

    def handle(self, node: Member[R]) -> SyncHandle[R]:
        return SyncHandle(self._run.handle(node), self._loop)

    def result(self, node: Member[R], timeout: Span | None = None) -> R:
        return self._loop.run(self._run.result(node, timeout))

    def wait(self, timeout: Span | None = None) -> Flow:
        return self._loop.run(self._run.wait(timeout))

    def status(self) -> FlowSnapshot:
        return self._loop.run(self._run.status())

    def members(self, *, states: Iterable[State | str] = ()) -> SyncListing[Snapshot]:
        return SyncListing(self._run.members(states=states), self._loop)

    def graph(self) -> Picture:
        return self._loop.run(self._run.graph())

    def cancel(
        self,
        reason: str = CANCELLED,
        *,
        policy: CancelPolicy | str = CancelPolicy.CANCEL_ALL,
        wait: Span | None = None,
    ) -> FlowCancel:
        return self._loop.run(self._run.cancel(reason, policy=policy, wait=wait))

    def backlog(self) -> Backlog:
        return self._loop.run(self._run.backlog())

    def replay(
        self,
        node: Member[object],
        reason: str = "",
        *,
        downstream: bool = False,
        request: str | None = None,
    ) -> PublicState:
        return self._loop.run(
            self._run.replay(node, reason, downstream=downstream, request=request)
        )

    def events(self, node: Member[object]) -> SyncListing[Event]:
        return SyncListing(self._run.events(node), self._loop)
