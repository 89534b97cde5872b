"""Tasks that run in processes of their own, for tests; a child process imports this module.

As a program, `python -m tests.worker.isolating URL`, it is a worker for them.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from pydantic import BaseModel

import flowfabric as ff
from tests.worker.process import say
from tests.worker.travelling import Money

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


class Tenants:
    """Carries the tenant of the submitter."""

    def save(self) -> Mapping[str, str]:
        return {"tenant": tenant.get()}

    @contextmanager
    def restore(self, saved: Mapping[str, str]) -> Iterator[None]:
        before = tenant.set(saved["tenant"])
        yield
        tenant.reset(before)


class Basket(BaseModel):
    items: list[str]


app = ff.App(
    sys.argv[1] if __name__ == "__main__" else "memory://",
    drain="0s",
    carrier=Tenants(),
    types=[ff.TypeHook(Money, encode=str, decode=Money.parse)],
)


@app.task(isolate="process")
def where(ctx: ff.Context, n: int = 0) -> tuple[int, int]:
    ctx.progress(50, "half")
    ctx.log.info("item %d", n, extra={"item": n, "whole": Basket(items=[])})
    return os.getpid(), n


@app.task(isolate="process")
async def where_async(ctx: ff.Context) -> int:
    await ctx.progress(30)
    return os.getpid()


@app.task(isolate="process")
def plain() -> int:
    return os.getpid()


@app.task(isolate="process")
def whose() -> str:
    return tenant.get()


@app.task(isolate="process")
def total(basket: Basket, prices: list[Money]) -> Money:
    return Money(sum(each.cents for each in prices) * len(basket.items), "EUR")


@app.task(isolate="process")
def fail(how: str) -> None:
    raised(how)


@app.task
def fail_here(how: str) -> None:
    raised(how)


@app.task(isolate="process")
async def fail_async(how: str) -> None:
    await asyncio.sleep(0)
    raised(how)


def raised(how: str) -> None:
    if how == "error":
        raise KeyError("missing") from ValueError("cause")
    if how == "task error":
        raise ff.TaskError("no money", category="unpaid", fatal=True)
    if how == "cancelled":
        raise asyncio.CancelledError
    raise SystemExit(3)


@app.task(isolate="process")
def wrong_result() -> int:
    return "three"  # type: ignore[return-value]


@app.task(isolate="process", retries=ff.RetryPolicy(2, ff.Fixed(1)))
def die_once(ctx: ff.Context, how: str) -> int:
    if ctx.attempt == 0:
        died(how)
    return ctx.attempt


@app.task(isolate="process")
def die(how: str) -> None:
    died(how)


def died(how: str) -> None:
    if how == "exit":
        os._exit(3)
    if how == "deaf connection":
        os.closerange(3, 100)
        threading.Event().wait()
    if how == "daemon":
        # It ends when the test does, and has the socket open until then.
        pipe = os.open(os.environ["TEST_PIPE"], os.O_RDONLY)
        if os.fork() == 0:
            os.setsid()
            os.read(pipe, 1)
            os._exit(0)
        os._exit(5)
    os.kill(os.getpid(), signal.Signals[how])
    threading.Event().wait()


def begin(place: str) -> None:
    """Start a process, and write down the ids of both where the test looks for them."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    made = Path(f"{place}.new")
    made.write_text(f"{os.getpid()} {other.pid}", encoding="utf-8")
    made.rename(place)


@app.task(isolate="process")
def hang(place: str) -> None:
    begin(place)
    threading.Event().wait()


@app.task(isolate="process")
def ignore(place: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    begin(place)
    threading.Event().wait()


@app.task(isolate="process")
def keep_interpreter(place: str) -> None:
    """No other thread of the process runs any more."""
    begin(place)
    ctypes.PyDLL(None).pause()


@app.task
async def fork_here() -> int:
    """A child of the worker that does not exec: it has whatever the worker had open."""
    child = os.fork()
    if child == 0:
        os.setsid()
        threading.Event().wait()
    return child


if __name__ == "__main__":
    asyncio.run(app.work())
    say("bye")
