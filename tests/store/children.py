"""What the other processes of a test do: each a function here, run in a process of its own.

A child says that it is ready when it has imported everything, begins when it is told to, and
answers with one line of JSON. No test lives here.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from flowfabric.core.lifecycle import complete
from flowfabric.store.sqlite import SqliteStore
from flowfabric.testing.build import ask, execution_id, order, submissions

ROOT = Path(__file__).resolve().parents[2]


class Job(NamedTuple):
    """Which function, the number of its process, and how much of it to do."""

    name: str
    number: int
    amount: int = 0


Answer = list[str]


async def open_and_insert(store: SqliteStore, job: Job) -> Answer:
    """Open a file that may not be there yet, and write one execution."""
    counts = await store.migrate()
    now_ms = await store.now()
    answers = await store.insert(submissions([order(job.number)], now_ms), now_ms)
    return [str(counts), *(str(answer.created) for answer in answers)]


async def claim_until_empty(store: SqliteStore, job: Job) -> Answer:
    """Claim so many at a time; answers the ids."""
    await store.migrate()
    claimed: Answer = []
    while True:
        token = f"token-{job.number}-{len(claimed)}"
        leases = await store.claim(ask(await store.now(), limit=job.amount, token=token))
        if not leases:
            return claimed
        claimed += [lease.id for lease in leases]


async def work_for(store: SqliteStore, job: Job) -> Answer:
    """Submit, claim and complete for so many seconds; answers how often.

    Several at a time, so that this process always wants to write.
    """
    await store.migrate()
    end_ms = await store.now() + job.amount * 1_000
    cycles = await asyncio.gather(*(_cycle(store, job.number, n, end_ms) for n in range(8)))
    return [str(sum(cycles))]


async def _cycle(store: SqliteStore, process: int, number: int, end_ms: int) -> int:
    lane, cycles = f"lane-{process}-{number}", 0
    while (now_ms := await store.now()) < end_ms:
        id = execution_id(number * 1_000_000 + cycles, partition=process)
        await store.insert(submissions([order(id=id, lane=lane)], now_ms), now_ms)
        asked = ask(await store.now(), lanes=(lane,), token=f"token-{number}-{cycles}")
        lease = (await store.claim(asked))[0]
        now_ms = await store.now()
        await store.apply([complete(lease, now_ms, b"done")], now_ms)
        cycles += 1
    return cycles


CHILDREN: dict[str, Callable[[SqliteStore, Job], Awaitable[Answer]]] = {
    each.__name__: each for each in (open_and_insert, claim_until_empty, work_for)
}


def run_together(path: Path, jobs: Sequence[Job]) -> list[Answer]:
    """One process per job, all begun at the same moment; answers in the order of the jobs."""
    with ExitStack() as stack:
        processes = [stack.enter_context(_started(path, job)) for job in jobs]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return [_answer(process) for process in processes]


def _started(path: Path, job: Job) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.store.children", str(path), *map(str, job)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def _answer(process: subprocess.Popen[str]) -> Answer:
    out, trouble = process.communicate()
    assert (process.returncode, trouble) == (0, "")
    answer: Answer = json.loads(out)
    return answer


async def _run(path: str, job: Job) -> Answer:
    store = SqliteStore(path)
    try:
        return await CHILDREN[job.name](store, job)
    finally:
        await store.close()


def main() -> None:
    path, name, number, amount = sys.argv[1:]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    answer = asyncio.run(_run(path, Job(name, int(number), int(amount))))
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
