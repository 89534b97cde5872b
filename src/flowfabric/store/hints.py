"""Wake-ups: what a write made possible, told to whoever listens in this process.

Hints are only hints. They may be lost, doubled or wrong in both directions; nothing may depend on
them. Polling is what makes things right, hints make them fast.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from flowfabric.core.documents import Put
from flowfabric.core.flow.model import Line
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import ANY_ROUTE, Ended, Execution, Submission
from flowfabric.core.states import CLAIMABLE, TERMINAL, State
from flowfabric.core.transition import Changeset, Transition
from flowfabric.forking import begin_here_and_in_children

_ACTIVE = State.ACTIVE


class Hint(NamedTuple):
    """What may have changed.

    `ready`: routes that have ready work, `ANY_ROUTE` among them if it may be any.
    `fenced`: leases that were ended by somebody other than their holder. `foreign`: another
    process wrote, so anything may have changed. `flows`: those that have something to do;
    `lines`: what it is, as far as this process knows; `turn_ms`: when a flow has, that has not now.
    `finished` is the exception among hints: it is said only after the store has answered, so it is
    a fact.
    """

    ready: tuple[str, ...] = ()
    due_ms: int | None = None
    ended: tuple[ExecutionId, ...] = ()
    fenced: tuple[ExecutionId, ...] = ()
    foreign: bool = False
    finished: tuple[Ended, ...] = ()
    flows: tuple[FlowId, ...] = ()
    lines: tuple[Line, ...] = ()
    turn_ms: int | None = None


Listener = Callable[[Hint], None]


def hint_of_inserts(batch: Iterable[Submission]) -> Hint:
    heads: list[Execution] = [each.execution for each in batch if each.create]
    due = [head.due_ms for head in heads if head.due_ms is not None]
    ready = dict.fromkeys(head.route for head in heads if head.state in CLAIMABLE)
    return Hint(tuple(ready), min(due, default=None))


def hint_of(transitions: Iterable[Transition]) -> Hint:
    """What these patches make possible, if they are written."""
    ready: dict[str, None] = {}
    due, ended, fenced = [], [], []
    lines: list[Line] = []
    for transition in transitions:
        patch = transition.patch
        state, due_ms = patch.get("state"), patch.get("due_ms")
        if state in CLAIMABLE:
            ready[transition.route] = None
        if isinstance(due_ms, int):
            due.append(due_ms)
        if state in TERMINAL:
            ended.append(transition.id)
        if "epoch" in patch and state is not _ACTIVE:
            fenced.append(transition.id)
        if transition.line is not None:
            lines.append(transition.line)
    return Hint(
        tuple(ready),
        min(due, default=None),
        tuple(ended),
        tuple(fenced),
        flows=tuple(dict.fromkeys(line.flow for line in lines)),
        lines=tuple(lines),
    )


def hint_of_puts(batch: Iterable[Put], *, passing: bool) -> Hint:
    """Nothing for those that need not wake anybody."""
    due = [put.due_ms for put in batch if put.due_ms is not None]
    return Hint() if passing else Hint(due_ms=min(due, default=None))


def hint_of_changes(batch: Sequence[Changeset]) -> Hint:
    """What these changesets have made possible."""
    told = hint_of([transition for changes in batch for transition in changes.transitions])
    members = [member for changes in batch for member in changes.members]
    lines = (line.flow for changes in batch for line in changes.lines)
    if members:
        new = hint_of_inserts(members)
        due = [at for at in (told.due_ms, new.due_ms) if at is not None]
        ready = tuple(dict.fromkeys((*told.ready, *new.ready)))
        told = told._replace(ready=ready, due_ms=min(due, default=None))
    if any(changes.lanes for changes in batch):
        told = told._replace(ready=(ANY_ROUTE,))
    return told._replace(
        flows=tuple(dict.fromkeys((*told.flows, *lines))),
        turn_ms=min(_turns(batch), default=None),
    )


def _turns(batch: Iterable[Changeset]) -> Iterator[int]:
    """When these flows have something to do by themselves, or are tried again."""
    for changes in batch:
        for flow in changes.new_flows:
            if flow.due_ms is not None:
                yield flow.due_ms
        for each in changes.flows:
            for name in ("due_ms", "next_try_ms"):
                at_ms = each.patch.get(name)
                if at_ms and isinstance(at_ms, int):
                    yield at_ms
        for line in changes.lines:
            if line.next_try_ms:
                yield line.next_try_ms


class Hints:
    """The listeners of one store. Each is called in the event loop it subscribed from.

    `on_subscribe` lets a store look closer from the moment that somebody listens; `on_publish` lets
    it hear first, in the thread of whoever tells.
    """

    def __init__(
        self,
        on_subscribe: Callable[[], None] | None = None,
        on_publish: Listener | None = None,
    ) -> None:
        self._on_subscribe = on_subscribe
        self._on_publish = on_publish
        begin_here_and_in_children(self._begin)

    def _begin(self) -> None:
        self._listeners: dict[Listener, asyncio.AbstractEventLoop] = {}
        self._lock = threading.Lock()

    def subscribe(self, listener: Listener) -> None:
        with self._lock:
            self._listeners[listener] = asyncio.get_running_loop()
        if self._on_subscribe is not None:
            self._on_subscribe()

    def unsubscribe(self, listener: Listener) -> None:
        with self._lock:
            self._listeners.pop(listener, None)

    @property
    def is_heard(self) -> bool:
        return bool(self._listeners)

    def publish(self, hint: Hint) -> None:
        if hint == Hint():
            return
        if self._on_publish is not None:
            self._on_publish(hint)
        with self._lock:
            listeners = list(self._listeners.items())
        here = _running_loop()
        for listener, loop in listeners:
            if loop is here:
                listener(hint)
            else:
                self._call(loop, listener, hint)

    def _call(self, loop: asyncio.AbstractEventLoop, listener: Listener, hint: Hint) -> None:
        try:
            loop.call_soon_threadsafe(listener, hint)
        except RuntimeError:
            # Its event loop has ended, and the listener with it.
            self.unsubscribe(listener)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
