"""The crash lab: processes that work on one store until they are killed.

`python -m flowfabric.testing.crash URL SEED TICK AHEAD_MS` submits, claims, appends and finishes
for ever and says on standard output what the store has acknowledged, one line each. It is killed
from outside at some line, or kills itself in the middle of a statement, or with half of a message
to the server sent; what was said before must be in the store afterwards, and nothing twice.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pkgutil import resolve_name
from time import monotonic
from typing import NamedTuple
from unittest.mock import patch

from flowfabric.core.documents import Document, PutDone, change, create, written
from flowfabric.core.entries import Entry
from flowfabric.core.ids import RANDOM_BITS, ExecutionId, execution_id, uuid7
from flowfabric.core.lifecycle import Failure, Order
from flowfabric.core.model import Lease
from flowfabric.core.policy import Fixed, Policy, RetryPolicy, encode_policy
from flowfabric.engine.conflict import persistently
from flowfabric.engine.engine import Engine
from flowfabric.engine.outcomes import Completed, Delayed, Failed, Outcome, Released
from flowfabric.errors import StoreUnavailable
from flowfabric.store import open_store
from flowfabric.store.clock import Clock, SystemClock
from flowfabric.store.sqlite.file import connect
from flowfabric.testing.picture import DOCUMENT_KINDS, DOCUMENT_WORDS, TOPICS

SUBMITTED = "submitted"
COMPLETED = "completed"
PUT = "put"
APPENDED = "appended"
LANE = "crash"
TASK = "work"
TTL_MS = 5_000
STEPS_PER_TICK = 200
# How every message to a server leaves this process.
SEND = "asyncio.selector_events._SelectorSocketTransport.write"
# So long a process asks a store that does not answer; far longer than a server needs to start.
UNANSWERED_SECONDS = 120.0

_POLICY = encode_policy(Policy(retry_policy=RetryPolicy(max_retries=5, backoff=Fixed(delay_ms=1))))


class Acknowledged(NamedTuple):
    """What a killed process had been told: ids it submitted, ids it completed, by which epoch;
    documents that it put, and their revisions; ids that it appended entries to, in which epoch."""

    submitted: list[ExecutionId]
    completed: list[tuple[ExecutionId, int]]
    documents: list[tuple[str, int]]
    appended: list[tuple[ExecutionId, int]]


def result_of(id: ExecutionId, epoch: int) -> bytes:
    """The result that a holder gives: it says whose it is."""
    return f"{id} {epoch}".encode()


class LaterClock:
    """The system's clock, ahead by so much: a store that has seen a time does not go back."""

    def __init__(self, ahead_ms: int) -> None:
        self._system = SystemClock()
        self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return self._system.now_ms() + self._ahead_ms


async def work(url: str, seed: int, clock: Clock) -> None:
    """Work until killed, whatever becomes of the server meanwhile."""
    chance = random.Random(seed)
    engine = Engine(open_store(url, clock=clock), clock=clock)
    is_open = False
    document: Document | None = None
    answered_at = monotonic()
    while True:
        try:
            if not is_open:
                await engine.open()
                is_open = True
            await _submit(engine, chance)
            document = await _put(engine, f"crash-{seed}", document)
            await _work_off(engine, chance, f"crash-{seed}")
            answered_at = monotonic()
        except StoreUnavailable:
            if monotonic() > answered_at + UNANSWERED_SECONDS:
                raise


async def _work_off(engine: Engine, chance: random.Random, worker: str) -> None:
    leases = await engine.claim(
        (LANE,),
        chance.randint(1, 40),
        tasks=(TASK,),
        worker=worker,
        token=secrets.token_hex(16),
        ttl_ms=TTL_MS,
    )
    await _append(engine, leases)
    await _finish(engine, leases, chance)


async def _append(engine: Engine, leases: list[Lease]) -> None:
    """Two entries for each, written together: half of them is a fault."""
    answers = await engine.append([(lease, _halves(lease.epoch)) for lease in leases])
    _say(
        f"{APPENDED} {lease.id} {lease.epoch}"
        for lease, is_kept in zip(leases, answers, strict=True)
        if is_kept
    )


def _halves(epoch: int) -> tuple[Entry, ...]:
    return tuple(Entry(TOPICS[0], f"{epoch} {half}", b"half", half) for half in range(2))


async def _put(engine: Engine, name: str, seen: Document | None) -> Document | None:
    """The words change with every put: a document and its words are written together."""
    now_ms = engine.clock.now_ms()
    words = DOCUMENT_WORDS[now_ms % 2 :][:1]
    if seen is None:
        put = create(DOCUMENT_KINDS[0], engine.namespace, name, body=b"", words=words)
    else:
        put = change(seen, body=b"", words=words, due_ms=now_ms)
    (answer,) = await persistently(engine.clock, lambda _: engine.store.put([put], now_ms))
    document = written(put, now_ms)
    if isinstance(answer, PutDone):
        _say([f"{PUT} {name} {answer.rev}"])
        return document
    # A process of the same name put it before.
    return answer.there if isinstance(answer.there, Document) else None


async def _submit(engine: Engine, chance: random.Random) -> None:
    now_ms = engine.clock.now_ms()
    orders = [
        Order(
            id=execution_id(chance.randrange(256), uuid7(now_ms, chance.getrandbits(RANDOM_BITS))),
            namespace=engine.namespace,
            lane=LANE,
            kind=TASK,
            payload=b"{}",
            policy=_POLICY,
            delay_until_ms=now_ms + 20 if chance.random() < 0.1 else None,
        )
        for _ in range(chance.randint(1, 30))
    ]
    _say(f"{SUBMITTED} {answer.id}" for answer in await engine.submit(orders))


async def _finish(engine: Engine, leases: list[Lease], chance: random.Random) -> None:
    outcomes = [outcome for lease in leases if (outcome := _outcome(lease, chance)) is not None]
    answers = await engine.finish(outcomes)
    _say(
        f"{COMPLETED} {outcome.lease.id} {outcome.lease.epoch}"
        for outcome, answer in zip(outcomes, answers, strict=True)
        if isinstance(outcome, Completed) and answer.error is None
    )


def _outcome(lease: Lease, chance: random.Random) -> Outcome | None:
    """Mostly completed; some fail, are delayed or handed back, and some are simply forgotten."""
    luck = chance.random()
    if luck < 0.7:
        return Completed(lease, result_of(lease.id, lease.epoch))
    if luck < 0.8:
        return Failed(lease, Failure("bad luck"))
    if luck < 0.85:
        return Delayed(lease, lease.until_ms)
    return Released(lease) if luck < 0.9 else None


def _say(lines: Iterable[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


class Victim(NamedTuple):
    """A process and its death: killed when it has said so many lines, or by itself at a tick.
    `halfway` is called when it has said half of them."""

    seed: int
    lines: int = 0
    tick: int = 0
    halfway: Callable[[], None] | None = None


def run_and_kill(url: str, victims: Sequence[Victim], ahead_ms: int = 0) -> Acknowledged:
    """Run them side by side, with clocks that are ahead by so much, until all are dead; answers
    what they had been told by then."""
    with ThreadPoolExecutor(len(victims)) as pool:
        said = list(pool.map(lambda victim: _follow(url, victim, ahead_ms), victims))
    return _acknowledged([line for heard in said for line in heard])


def _follow(url: str, victim: Victim, ahead_ms: int) -> list[str]:
    command = [sys.executable, "-m", "flowfabric.testing.crash", url]
    command += [str(victim.seed), str(victim.tick), str(ahead_ms)]
    heard: list[str] = []
    with subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        for line in process.stdout or ():
            # A last line without its end was cut off by the kill: it acknowledges nothing.
            if line.endswith("\n"):
                heard.append(line.strip())
            if victim.halfway is not None and len(heard) == victim.lines // 2:
                victim.halfway()
            if len(heard) == victim.lines:
                process.kill()
    if process.returncode != -signal.SIGKILL:
        raise RuntimeError("\n".join(["a process ended by itself:", *heard[-20:]]))
    return heard


def _acknowledged(lines: list[str]) -> Acknowledged:
    told = Acknowledged([], [], [], [])
    for line in lines:
        match line.split():
            case [kind, id] if kind == SUBMITTED:
                told.submitted.append(ExecutionId(id))
            case [kind, id, epoch] if kind == COMPLETED:
                told.completed.append((ExecutionId(id), int(epoch)))
            case [kind, id, epoch] if kind == APPENDED:
                told.appended.append((ExecutionId(id), int(epoch)))
            case [kind, name, rev] if kind == PUT:
                told.documents.append((name, int(rev)))
            case _:
                raise RuntimeError(f"a process said: {line}")
    return told


def die_at(tick: int) -> None:
    """Kill this process inside the store. Ticks of a file are beginnings of statements and steps in
    them; ticks of a server are messages, of which the last is sent by half."""
    left = count(tick, -1)

    def count_down(*_: object) -> int:
        if next(left) <= 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def fatal(path: str, synchronous: str) -> sqlite3.Connection:
        connection = connect(path, synchronous)
        connection.set_trace_callback(count_down)
        connection.set_progress_handler(count_down, STEPS_PER_TICK)
        return connection

    def send(transport: object, message: bytes) -> None:
        half = len(message) // 2
        whole(transport, message[:half])
        count_down()
        whole(transport, message[half:])

    whole: Callable[[object, bytes], None] = resolve_name(SEND)
    patch("flowfabric.store.sqlite.store.connect", fatal).start()
    patch(SEND, send).start()


def main(url: str, seed: str, tick: str, ahead_ms: str) -> None:
    if int(tick):
        die_at(int(tick))
    asyncio.run(work(url, int(seed), LaterClock(int(ahead_ms))))


if __name__ == "__main__":
    main(*sys.argv[1:])
