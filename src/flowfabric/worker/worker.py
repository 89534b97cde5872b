"""Worker: slots, the claim loop, drain.

It claims as much as it has room for, starts each at once, and is woken by hints. Cancellation
reaches the coroutine as a cancellation. Draining stops claiming, lets what runs finish within a
bound, and hands the rest back.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence

from flowfabric.core import names
from flowfabric.core.carried import Carrier
from flowfabric.core.flow.inputs import Passed
from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import Failure
from flowfabric.core.model import Lease
from flowfabric.core.routes import is_served, routes_of
from flowfabric.core.transition import BATCH_LIMIT
from flowfabric.engine.direct_ends import Followed
from flowfabric.engine.engine import Engine
from flowfabric.engine.hints import Hint
from flowfabric.engine.inputs import Inputs
from flowfabric.engine.outcomes import Failed, Follow, Outcome, Released, hand_back_unread
from flowfabric.engine.slots import Slot, Slots
from flowfabric.errors import Corrupt, FlowFabricError, StoreMismatch, StoreUnavailable
from flowfabric.loggers import logger_of
from flowfabric.version import VERSION
from flowfabric.worker.child.pool import END_SECONDS, ChildPool
from flowfabric.worker.context import Context, CurrentContext
from flowfabric.worker.finisher import Finisher
from flowfabric.worker.handler import Handler
from flowfabric.worker.heartbeat import Heartbeat
from flowfabric.worker.idle import Idle
from flowfabric.worker.isolated import job_of, run_in_child
from flowfabric.worker.keeper import SAFETY_SECONDS, Keeper
from flowfabric.worker.leaving import leave_behind
from flowfabric.worker.line_keeper import LineKeeper
from flowfabric.worker.log import WorkerLog
from flowfabric.worker.named_log import NamedLog
from flowfabric.worker.progress import LoopProgress
from flowfabric.worker.restoring import Restorer, leave
from flowfabric.worker.runner import HANDLER_PANIC, UnreadArguments, failed, run_attempt
from flowfabric.worker.stall_watch import StallWatch
from flowfabric.worker.threads import DaemonThreads

logger = logger_of("flowfabric.worker")

Handed = asyncio.Task[Inputs]
# What upstreams hand to one: nothing, what is known here, or who is asked.
Given = list[Passed] | Corrupt | Handed | None

IDLE_SECONDS = (0.1, 2.0)
CANCEL_SECONDS = 5.0
CLEAN_UP_SECONDS = 1.0


class Worker:
    """Runs handlers for the executions of some lanes, as far as it knows their tasks."""

    def __init__(
        self,
        engine: Engine,
        handlers: Mapping[str, Handler],
        *,
        name: str,
        lanes: Sequence[str],
        slots: int = 100,
        ttl_ms: int = 30_000,
        drain_seconds: float = 30.0,
        store: str = "",
        carrier: Carrier | None = None,
    ) -> None:
        self.name = names.worker_name(name)
        for handler in handlers.values():
            handler.require_found()
        self._engine = engine
        self._handlers = handlers
        self._lanes = tuple(names.lane_name(lane) for lane in lanes)
        self._tasks: tuple[str, ...] = ()
        self._routes: frozenset[str] = frozenset()
        self._slots = Slots(slots, self._free)
        self._ttl_ms = ttl_ms
        self._drain_seconds = drain_seconds
        # By epoch too: a lost attempt may still clean up while its successor runs here.
        self._running: dict[tuple[ExecutionId, int], tuple[Lease, asyncio.Task[None]]] = {}
        self._unanswered: str | None = None
        self._doubtful: list[str] = []
        # Slots that are kept for what may follow, and whether a claim found less than it asked for.
        self._promised = 0
        self._is_dry = False
        self._is_handing_back = False
        self._checks: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()
        self._ready = asyncio.Event()
        self._stopping = False
        self._idle = Idle(*IDLE_SECONDS)
        self._finisher = Finisher(engine, self._finished, self._may_follow)
        self._keeper = Keeper(engine, ttl_ms, self._lost_elsewhere)
        self._threads = DaemonThreads(slots, "flowfabric-task")
        self._children = ChildPool()
        self._log = WorkerLog(self.name)
        self._named = NamedLog(engine, self._log)
        self._stalls = StallWatch(self.name, handlers)
        self._store = store
        self._restorer = Restorer(engine, carrier)
        self._lines = LineKeeper(engine)
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Begin to drain. `run` returns when it is done."""
        self._stopping = True
        self._freed.set()
        self._ready.set()

    async def run(self) -> None:
        """Work until stopped, then drain; cancelled, hand back at once what is held."""
        self._loop = asyncio.get_running_loop()
        self._engine.hints.subscribe(self._hear)
        self._keeper.start()
        self._stalls.start()
        self._log.started(
            lanes=self._lanes,
            tasks=sorted(self._handlers),
            slots=self._slots.count,
            store=self._store,
            version=VERSION,
        )
        heartbeat = self._heartbeat()
        heartbeat.start()
        interrupted: asyncio.CancelledError | StoreMismatch | None = None
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._finisher.run())
                try:
                    while not self._stopping:
                        await self._guarded_round()
                    if self._running:
                        self._log.stopping(len(self._running), self._drain_seconds)
                    await self._drain(self._drain_seconds)
                except asyncio.CancelledError as error:
                    # Raised inside the group it would end the finisher before all is stored.
                    interrupted = error
                    await self._hand_back_unanswered()
                    await self._drain(0.0)
                except StoreMismatch as error:
                    interrupted = error
                    await self._drain(0.0)
                finally:
                    self._finisher.close(max(self._drain_seconds, CANCEL_SECONDS))
            if interrupted is not None:
                raise interrupted
        finally:
            self._engine.hints.unsubscribe(self._hear)
            self._stalls.stop()
            await heartbeat.stop()
            await self._children.close()
            await self._lines.close()
            await self._named.close()
            await asyncio.to_thread(self._keeper.stop)
            self._threads.shutdown(wait=False)
            self._log.stopped()

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            self._engine,
            self.name,
            lanes=self._lanes,
            tasks=self._handlers,
            slots=self._slots.count,
            busy=lambda: len(self._running),
        )

    async def _guarded_round(self) -> None:
        """A round that fails is told and tried again: a worker does not end by itself, unless no
        later round could succeed either."""
        try:
            await self._round()
        except StoreMismatch:
            raise
        except Exception:
            logger.exception("claiming failed", extra={"worker": self.name})
            await self._rest()

    async def _round(self) -> None:
        self._freed.clear()
        self._ready.clear()
        room = min(self._room, BATCH_LIMIT)
        if room < 1 or not self._finisher.has_room:
            # Somebody may wait for a slot: what follows from work here must not go before them.
            self._is_dry = False
            await self._freed.wait()
            return
        leases = await self._claim(room)
        self._is_dry = len(leases) < room
        self._begin(leases)
        if leases:
            self._idle.reset()
        if len(leases) == room:
            # Let what was just started run before more is claimed.
            await asyncio.sleep(0)
        else:
            await self._rest()

    @property
    def _room(self) -> int:
        return self._slots.room - self._promised

    @property
    def _served(self) -> frozenset[str]:
        """The routes of all that it can run; a task may come to be known while it runs."""
        if len(self._tasks) != len(self._handlers):
            self._tasks = tuple(self._handlers)
            self._routes = frozenset(routes_of(self._lanes, self._tasks))
        return self._routes

    def _free(self) -> None:
        self._freed.set()

    def _begin(self, leases: Sequence[Lease]) -> None:
        worth = self._worth_starting(leases)
        self._log.claimed(worth)
        self._keeper.hold(worth)
        self._restorer.ask(worth)
        members = [lease for lease in worth if lease.head.flow]
        known = self._engine.flows.known_inputs(members)
        handed = self._ask_inputs([lease for lease in members if lease.head.id not in known])
        loop = asyncio.get_running_loop()
        for lease in worth:
            head = lease.head
            given = known.get(head.id, handed) if head.flow else None
            task = loop.create_task(self._attempt(lease, given, self._slots.take()))
            self._running[head.id, head.epoch] = (lease, task)

    def _may_follow(self, count: int) -> Follow | None:
        """How this worker would go on with what its outcomes set free: not while it stops, and not
        before others that may wait for it."""
        limit = min(self._room, count)
        if self._stopping or not self._is_dry or limit < 1:
            return None
        self._promised += limit
        return Follow(
            lanes=self._lanes,
            tasks=tuple(self._handlers),
            limit=limit,
            worker=self.name,
            token=secrets.token_hex(16),
            ttl_ms=self._ttl_ms,
        )

    def _worth_starting(self, leases: Sequence[Lease]) -> list[Lease]:
        """Not what is over before it begins: the answer of a store in trouble can take long."""
        soonest_ms = self._engine.clock.now_ms() + SAFETY_SECONDS * 1000
        return [lease for lease in leases if lease.until_ms > soonest_ms]

    async def _claim(self, room: int) -> list[Lease]:
        """New work; after a claim whose answer was lost, first of all what that one took."""
        if self._unanswered is None and self._doubtful:
            self._unanswered = self._doubtful.pop()
        is_repeated = self._unanswered is not None
        token = self._unanswered = self._unanswered or secrets.token_hex(16)
        try:
            leases = await self._ask(self._lanes, room, token, is_repeated=is_repeated)
        except StoreUnavailable as error:
            logger.warning("claim failed", extra={"error": error.code})
            return []
        except Corrupt:
            # What it took cannot be worked on; the engine has ended and logged it.
            leases = []
        self._unanswered = None
        return leases

    async def _ask(
        self, lanes: Sequence[str], limit: int, token: str, *, is_repeated: bool
    ) -> list[Lease]:
        return await self._engine.claim(
            lanes,
            limit,
            tasks=tuple(self._handlers),
            worker=self.name,
            token=token,
            ttl_ms=self._ttl_ms,
            repeated=is_repeated,
        )

    async def _rest(self) -> None:
        """Until a hint says that there may be work, or the pause that grows while there is none."""
        try:
            async with asyncio.timeout(self._idle.next()):
                await self._ready.wait()
        except TimeoutError:
            return

    def _hear(self, hint: Hint) -> None:
        if hint.foreign or is_served(hint.ready, self._served):
            self._idle.reset()
            self._ready.set()
        if hint.fenced:
            self._check([held for held, _ in self._running.values() if held.id in hint.fenced])

    def _check(self, leases: Sequence[Lease]) -> None:
        """A hint says that these are over: ask the store, which also knows why."""
        if not leases:
            return
        check = asyncio.get_running_loop().create_task(self._renew_now(leases))
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)

    async def _renew_now(self, leases: Sequence[Lease]) -> None:
        try:
            answers = await self._engine.renew(leases, self._ttl_ms)
        except FlowFabricError:
            # The keeper asks again in its own time.
            return
        for answer in answers:
            if answer.error is not None:
                self._stop_task(answer.lease, answer.error)

    def _ask_inputs(self, members: Sequence[Lease]) -> Handed | None:
        """What members of flows get from their upstreams, in one question for all of them."""
        if not members:
            return None
        return asyncio.get_running_loop().create_task(self._engine.flows.inputs(members))

    async def _attempt(self, lease: Lease, given: Given, slot: Slot) -> None:
        slot.enter()
        handler: Handler | None = None
        outcome: Outcome | None
        try:
            handler = self._handlers[lease.head.kind]
            if isinstance(given, asyncio.Task) and (given := await _answer(given, lease)) is None:
                outcome = Released(lease)
            elif isinstance(given, Corrupt):
                outcome = Failed(lease, Failure(str(given), given.code, fatal=True))
            else:
                outcome = await self._run(lease, handler, given or ())
        except asyncio.CancelledError:
            # A lost lease leaves nothing to say; a drain hands the work back, but not while a
            # thread still does it: then the lease runs out by itself.
            is_over = handler is None or handler.is_endable
            outcome = Released(lease) if self._is_handing_back and is_over else None
            if self._is_handing_back and not is_over:
                self._log_left(
                    lease, "the thread of its task {task!r} still runs; its lease will expire"
                )
        except Exception as error:
            # Somebody must say what became of the lease, else it would be renewed for ever.
            logger.exception("the worker failed to run an attempt", extra={"execution": lease.id})
            outcome = failed(lease, error, HANDLER_PANIC)
        finally:
            del self._running[lease.head.id, lease.head.epoch]
            slot.end()
        if outcome is None:
            self._lines.forget(lease)
            self._keeper.drop([lease])
        else:
            self._finisher.finish(self._lines.with_lines(outcome))

    async def _run(self, lease: Lease, handler: Handler, passed: Sequence[Passed]) -> Outcome:
        entered = None
        try:
            if handler.origin is not None:
                saved = await self._restorer.saved(lease)
                job = job_of(lease, handler.origin, passed, saved)
                context = self._context(lease) if handler.takes_context else None
                return await run_in_child(job, context, self._children)
            entered = await self._restorer.enter(lease)
            current = CurrentContext(self._context, lease)
            return await run_attempt(lease, handler, current, self._threads, passed=passed)
        except UnreadArguments as error:
            # Of another version of the program, while a deploy is half done: one that can read
            # them goes on.
            return hand_back_unread(lease, self._engine.clock.now_ms(), str(error))
        finally:
            leave(entered, lease)

    def _context(self, lease: Lease) -> Context:
        # A plain function asks for it in its thread, and so without a running loop.
        loop = self._loop or asyncio.get_running_loop()
        progress = LoopProgress(self._engine.progress, loop)
        return Context(lease, progress, self._lines.log_of(lease, loop))

    def _finished(
        self, outcomes: Sequence[Outcome], followed: Followed, follow: Follow | None
    ) -> None:
        self._keeper.drop(outcome.lease for outcome in outcomes)
        if follow is not None:
            self._promised -= follow.limit
            self._go_on(followed, follow)
        self._freed.set()
        now_ms = self._engine.clock.now_ms()
        for outcome, answer in zip(outcomes, followed.answers, strict=True):
            self._named.finished(outcome, answer, now_ms)

    def _go_on(self, followed: Followed, follow: Follow) -> None:
        """Begin what was claimed with the outcomes; one that stops meanwhile hands it back."""
        if followed.is_unanswered:
            self._doubtful.append(follow.token)
            self._ready.set()
        if self._stopping:
            for lease in followed.leases:
                self._finisher.finish(Released(lease))
        else:
            self._begin(followed.leases)

    def _lost_elsewhere(self, lease: Lease, error: FlowFabricError) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop_soon, lease, error)

    def _stop_soon(self, lease: Lease, error: FlowFabricError) -> None:
        """After its first step: a task that is cancelled before would never free its slot."""
        asyncio.get_running_loop().call_soon(self._stop_task, lease, error)

    def _stop_task(self, lease: Lease, error: FlowFabricError) -> None:
        held = self._running.get((lease.id, lease.epoch))
        if held is None or held[1].cancelling():
            return
        self._log.lost(lease, error)
        held[1].cancel()

    async def _hand_back_unanswered(self) -> None:
        """What was claimed without an answer that anybody waited for."""
        tokens = [*self._doubtful, *([self._unanswered] if self._unanswered else [])]
        for token in tokens:
            try:
                leases = await self._ask((), BATCH_LIMIT, token, is_repeated=True)
            except FlowFabricError as error:
                logger.warning(
                    "could not hand back the work of an unanswered claim",
                    extra={"error": error.code},
                )
                return
            for lease in leases:
                self._finisher.finish(Released(lease))

    async def _drain(self, seconds: float) -> None:
        await self._wait_for_running(seconds)
        self._is_handing_back = True
        for _, task in self._running.values():
            task.cancel()
        # What cleans up after its cancellation gets some time for it, but not much more than work;
        # a process gets the time that it takes to kill it.
        seconds = min(max(self._drain_seconds, CLEAN_UP_SECONDS), CANCEL_SECONDS)
        kinds = {lease.head.kind for lease, _ in self._running.values()}
        has_children = any(self._handlers[kind].origin for kind in kinds & self._handlers.keys())
        await self._wait_for_running(max(seconds, END_SECONDS) if has_children else seconds)
        for lease, task in self._running.values():
            # It does not listen; whatever it still says will be refused.
            self._log_left(
                lease, "its task {task!r} ignored its cancellation; its lease is released"
            )
            self._finisher.finish(Released(lease))
            leave_behind(task)

    def _log_left(self, lease: Lease, why: str) -> None:
        logger.warning(
            "abandoned %s: %s",
            lease.id,
            why.format(task=lease.head.kind),
            extra={"execution": lease.id, "task": lease.head.kind, "worker": self.name},
        )

    async def _wait_for_running(self, seconds: float) -> None:
        tasks = [task for _, task in self._running.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)


async def _answer(handed: Handed, lease: Lease) -> list[Passed] | Corrupt | None:
    """What one of those gets who were asked about; None when nobody could be asked now."""
    try:
        return (await asyncio.shield(handed)).get(lease.id, [])
    except FlowFabricError as error:
        logger.warning(
            "could not read the inputs of %s: %s",
            lease.id,
            error,
            extra={"execution": lease.id, "error": error.code},
        )
        return None
