"""The tasks of the demo and what is asked of them. The caller and the workers both build this.

Every task that gets to its end notes so in a side file, before it returns: this is the effect in
the outside world that the closing proof compares with what the store says.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from flowfabric.app import App
from flowfabric.core.policy import Fixed, RetryPolicy
from flowfabric.core.states import PublicState
from flowfabric.errors import TaskError
from flowfabric.task import Call, Task
from flowfabric.worker.context import Context

LANE = "demo"
WORKERS = (1, 2)
SLOTS = 6
LEASE_TTL_SECONDS = 5

RENDERS = 4
REMINDERS = 3
DECLINED_ORDER = 3
FLAKY_EVERY = 5
FLAKY_FAILURES = 2

_CHARGE_SECONDS = 0.25
_RENDER_STEPS = 16
_STEP_SECONDS = 0.25
_RETRY = RetryPolicy(max_retries=5, backoff=Fixed(delay_ms=700))
_REMINDER_DELAY = "3s"
_FIRST = 100

Note = Callable[[Context], None]


R = TypeVar("R")


class Wanted(NamedTuple):
    """One start, how people call it, and how it has to end."""

    label: str
    call: Call[object]
    ends: PublicState = PublicState.COMPLETED
    result: object = None


class Shop(NamedTuple):
    """The app and its tasks."""

    app: App
    hello: Task[int]
    charge: Task[str]
    render: Task[str]
    remind: Task[str]
    listen: Task[None]


def worker_lane(number: int) -> str:
    """A lane that only one worker serves: how the caller knows that it is there."""
    return f"{LANE}-{number}"


def open_shop(url: str, namespace: str, effects: Path) -> Shop:
    app = App(
        url, namespace=namespace, concurrency=SLOTS, lease_ttl=LEASE_TTL_SECONDS, drain="500ms"
    )
    note = _note_in(effects)

    @app.task(lane=LANE)
    async def hello() -> int:
        return os.getpid()

    @app.task(lane=LANE, retries=_RETRY)
    async def charge(ctx: Context, order: int) -> str:
        await asyncio.sleep(_CHARGE_SECONDS)
        if order == DECLINED_ORDER:
            raise TaskError("the card was declined", category="declined", fatal=True)
        if order % FLAKY_EVERY == 0 and ctx.retries < FLAKY_FAILURES:
            raise ConnectionError("the payment service did not answer")
        note(ctx)
        return receipt(order)

    @app.task(lane=LANE, priority=_FIRST)
    async def render(ctx: Context, film: int) -> str:
        for _ in range(_RENDER_STEPS):
            await asyncio.sleep(_STEP_SECONDS)
        note(ctx)
        return poster(film)

    @app.task(lane=LANE)
    async def remind(ctx: Context, order: int) -> str:
        note(ctx)
        return reminder(order)

    @app.task(lane=LANE, priority=_FIRST)
    async def listen(ctx: Context) -> None:
        await asyncio.Event().wait()
        note(ctx)

    return Shop(app, hello, charge, render, remind, listen)


def receipt(order: int) -> str:
    return f"receipt {order}"


def poster(film: int) -> str:
    return f"poster of film {film}"


def reminder(order: int) -> str:
    return f"reminder of order {order}"


def hellos_of(shop: Shop) -> list[Call[int]]:
    """One for each worker, in its own lane."""
    return [shop.hello.bind(lane=worker_lane(number)) for number in WORKERS]


def orders_of(shop: Shop, count: int) -> list[Wanted]:
    """Payments, each with its own key: asking again must not charge again."""
    return [
        Wanted(
            f"charge order {order}",
            _plain(shop.charge.bind(order, idempotency_key=f"order-{order}")),
            PublicState.FAILED if order == DECLINED_ORDER else PublicState.COMPLETED,
            None if order == DECLINED_ORDER else receipt(order),
        )
        for order in range(1, count + 1)
    ]


def errands_of(shop: Shop) -> list[Wanted]:
    """Long work, delayed work, and one that never ends by itself."""
    films = [
        Wanted(f"render film {film}", _plain(shop.render.bind(film)), result=poster(film))
        for film in range(1, RENDERS + 1)
    ]
    reminders = [
        Wanted(
            f"remind order {order}",
            _plain(shop.remind.bind(order, delay=_REMINDER_DELAY)),
            result=reminder(order),
        )
        for order in range(1, REMINDERS + 1)
    ]
    return [*films, *reminders, Wanted("listen", _plain(shop.listen.bind()), PublicState.CANCELLED)]


def _plain(call: Call[R]) -> Call[object]:
    """Calls of different tasks go into one batch."""
    return Call(call.request, call.decode)


def _note_in(effects: Path) -> Note:
    """One line per finished run; appended in one write, so that lines never mix."""

    def note(ctx: Context) -> None:
        line = f"{ctx.id} {ctx.attempt}\n".encode()
        handle = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)

    return note


def read_effects(effects: Path) -> list[tuple[str, int]]:
    """Which execution got to its end, and in which attempt."""
    if not effects.exists():
        return []
    lines = [line.split() for line in effects.read_text(encoding="ascii").splitlines()]
    return [(id, int(attempt)) for id, attempt in lines]
