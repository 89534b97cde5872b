"""A program of its own for tests with forks: `python -m tests.app.forking URL WAY`.

It uses an app, forks in one way, uses the app in both processes, and says what came of it.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import flowfabric as ff
from flowfabric.errors import FlowFabricError

PATIENCE_SECONDS = 20
ORDERS = 40


class Program(NamedTuple):
    app: ff.App
    double: ff.Task[..., int]


def make(url: str) -> Program:
    app = ff.App(url)

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    return Program(app, double)


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201


async def doubled(program: Program, n: int) -> tuple[str, int]:
    """One execution and one flow, run by a worker of this process."""
    async with asyncio.timeout(PATIENCE_SECONDS), program.app.running():
        return await started(program, n)


async def started(program: Program, n: int) -> tuple[str, int]:
    handle = await program.double.start(n)
    g = program.app.graph("twice")
    last = g.add(program.double, g.add(program.double, n))
    return handle.id, await handle.result() + await (await g.submit()).result(last)


def in_child(work: Callable[[], object]) -> int:
    """Fork, and let the child leave as a program does that ends by itself."""
    child = os.fork()
    if child:
        return child
    try:
        say("child", work())
        gc.collect()
        code = 0
    except BaseException as error:
        say("child failed:", repr(error))
        code = 1
    sys.exit(code)


def after_use(program: Program) -> None:
    """The store is open and its event loop is over, as in a server that loads and then forks."""

    async def use() -> str:
        handle = await program.double.start(1)
        return handle.id

    say("parent", asyncio.run(use()))
    child = in_child(lambda: asyncio.run(doubled(program, 10)))
    say("ended", os.waitpid(child, 0)[1])
    say("parent", asyncio.run(doubled(program, 100)))
    asyncio.run(program.app.close())


def talk(program: Program, line: Connection) -> None:
    """In a child of a program that is at work."""
    line.send(asyncio.run(doubled(program, 10)))
    line.recv()
    line.send(asyncio.run(doubled(program, 1000)))
    gc.collect()


def beside(program: Program) -> None:
    """Parent and child at work, by turns and together; the child goes on without its parent."""

    async def work() -> Connection:
        ours, theirs = multiprocessing.get_context("fork").Pipe()
        async with asyncio.timeout(2 * PATIENCE_SECONDS), program.app.running():
            ids = [(await started(program, 1))[0]]
            # Threads are inside the store while the process forks.
            many = asyncio.gather(*(program.double.start(n) for n in range(ORDERS)))
            child = multiprocessing.get_context("fork").Process(
                target=talk, args=(program, theirs), daemon=True
            )
            await asyncio.sleep(0)
            child.start()
            ids.extend(handle.id for handle in await many)
            id, total = await asyncio.to_thread(ours.recv)
            say("child", total)
            ids.extend((id, (await started(program, 100))[0]))
            say("ids", len(ids) == len(set(ids)))
        return ours

    line = asyncio.run(work())
    line.send("the parent has closed the store")
    say("child", line.recv()[1])


def by_signal(program: Program) -> None:
    """A child of a worker ends when it is told to, and the worker does not."""

    async def work() -> None:
        working = asyncio.create_task(program.app.work())
        await started(program, 1)
        say("ready")
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.write(write, b"!")
            signal.pause()
        os.read(read, 1)
        os.kill(child, signal.SIGTERM)
        say("ended by", os.waitpid(child, 0)[1])
        say("parent", (await started(program, 100))[1])
        os.kill(os.getpid(), signal.SIGTERM)
        await working

    asyncio.run(work())
    say("stopped")


def handles(program: Program) -> None:
    """What was made before the fork can be used after it."""

    async def begin() -> ff.Handle[int]:
        return await program.double.start(4)

    async def end(handle: ff.Handle[int]) -> object:
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                before = (await handle.explain()).wakes
            except FlowFabricError as error:
                return type(error).__name__
            async with program.app.running():
                return before, await handle.result()

    handle = asyncio.run(begin())
    say("ended", os.waitpid(in_child(lambda: asyncio.run(end(handle))), 0)[1])


async def listed(program: Program) -> set[int]:
    """The processes whose workers are registered."""
    return {worker.pid for worker in await program.app.workers()}


async def until_listed(program: Program, *wanted: int) -> None:
    """A worker is listed from its first heartbeat on, and until its last word has arrived."""
    while await listed(program) != set(wanted):
        pass


async def visit(program: Program, line: Connection) -> None:
    """In a child: a worker beside the parent's, and what it sees before and after its parent."""
    me, parent = os.getpid(), os.getppid()
    async with asyncio.timeout(2 * PATIENCE_SECONDS), program.app.running():
        await until_listed(program, me, parent)
        line.send("registered")
        if await asyncio.to_thread(line.recv) == "stay":
            line.send(me in await listed(program))
            await until_listed(program, me)
            line.send("alone")
    line.send("ended")


def registry(program: Program) -> None:
    """Workers of a parent and of its children: one ends before the parent, one after it."""
    fork = multiprocessing.get_context("fork")
    me, lines = os.getpid(), [fork.Pipe() for _ in range(2)]

    async def child(line: tuple[Connection, Connection]) -> BaseProcess:
        born = fork.Process(target=lambda: asyncio.run(visit(program, line[1])), daemon=True)
        born.start()
        say(await asyncio.to_thread(line[0].recv))
        await until_listed(program, me, born.pid or 0)
        return born

    async def work() -> None:
        (short, _), (long, _) = lines
        async with asyncio.timeout(4 * PATIENCE_SECONDS), program.app.running():
            await until_listed(program, me)
            await child(lines[0])
            short.send("end")
            say(await asyncio.to_thread(short.recv), me in await listed(program))
            await until_listed(program, me)
            await child(lines[1])
        long.send("stay")

    asyncio.run(work())
    say("outlives", lines[1][0].recv(), lines[1][0].recv(), lines[1][0].recv())


WAYS = {
    "after": after_use,
    "beside": beside,
    "signal": by_signal,
    "handles": handles,
    "registry": registry,
}

if __name__ == "__main__":
    WAYS[sys.argv[2]](make(sys.argv[1]))
