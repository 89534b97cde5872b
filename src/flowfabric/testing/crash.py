"""The crash lab: processes that work on one file until they are killed.

`python -m flowfabric.testing.crash FILE SEED` submits, claims and finishes for ever and says on
standard output what the store has acknowledged, one line each. Whoever started it kills it at a
line of its choice; what was said before must be in the file afterwards, and nothing twice.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterable
from typing import NamedTuple

from flowfabric.core.ids import RANDOM_BITS, ExecutionId, execution_id, uuid7
from flowfabric.core.lifecycle import Failure, Order
from flowfabric.core.model import Lease
from flowfabric.core.policy import Fixed, Policy, RetryPolicy, encode_policy
from flowfabric.engine.engine import Engine
from flowfabric.engine.outcomes import Completed, Delayed, Failed, Outcome, Released
from flowfabric.store.sqlite import SqliteStore

SUBMITTED = "submitted"
COMPLETED = "completed"
LANE = "crash"
TTL_MS = 5_000

_POLICY = encode_policy(Policy(retry_policy=RetryPolicy(max_retries=5, backoff=Fixed(delay_ms=1))))


class Acknowledged(NamedTuple):
    """What a killed process had been told: ids it submitted, ids it completed, by which epoch."""

    submitted: list[ExecutionId]
    completed: list[tuple[ExecutionId, int]]


def result_of(id: ExecutionId, epoch: int) -> bytes:
    """The result that a holder gives: it says whose it is."""
    return f"{id} {epoch}".encode()


async def work(path: str, seed: int) -> None:
    """Work until killed."""
    chance = random.Random(seed)
    engine = Engine(SqliteStore(path))
    await engine.open()
    while True:
        await _submit(engine, chance)
        leases = await engine.claim(
            (LANE,),
            chance.randint(1, 40),
            worker=f"crash-{seed}",
            token=secrets.token_hex(16),
            ttl_ms=TTL_MS,
        )
        await _finish(engine, leases, chance)


async def _submit(engine: Engine, chance: random.Random) -> None:
    now_ms = engine.clock.now_ms()
    orders = [
        Order(
            id=execution_id(chance.randrange(256), uuid7(now_ms, chance.getrandbits(RANDOM_BITS))),
            namespace=engine.namespace,
            lane=LANE,
            kind="work",
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


def run_and_kill(path: str, seeds: list[int], *, lines: list[int]) -> Acknowledged:
    """Start a process per seed, kill each when it has said so many lines, gather what they said."""
    said: list[list[str]] = [[] for _ in seeds]
    threads = [
        threading.Thread(target=_follow, args=(path, seed, limit, heard))
        for seed, limit, heard in zip(seeds, lines, said, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _acknowledged([line for heard in said for line in heard])


def _follow(path: str, seed: int, limit: int, heard: list[str]) -> None:
    command = [sys.executable, "-m", "flowfabric.testing.crash", path, str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None:
            raise RuntimeError("the process has no output")
        for line in process.stdout:
            # A last line without its end was cut off by the kill: it acknowledges nothing.
            if line.endswith("\n"):
                heard.append(line.strip())
            if len(heard) == limit:
                process.kill()


def _acknowledged(lines: list[str]) -> Acknowledged:
    told = Acknowledged([], [])
    for line in lines:
        kind, id, *rest = line.split()
        if kind == SUBMITTED:
            told.submitted.append(ExecutionId(id))
        else:
            told.completed.append((ExecutionId(id), int(rest[0])))
    return told


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], int(sys.argv[2])))
