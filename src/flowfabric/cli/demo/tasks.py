"""The single tasks of the demo and what is asked of them. The caller and the workers build this.

Every task that gets to its end notes so in a side file, before it returns.
"""

from __future__ import annotations

import asyncio
import os
from typing import NamedTuple, TypeVar

from flowfabric.app import App
from flowfabric.cli.demo.notes import Notes
from flowfabric.cli.demo.premiere import Studio, open_studio
from flowfabric.cli.demo.wanted import FIRST, LANE, Wanted
from flowfabric.core.policy import Fixed, RetryPolicy
from flowfabric.core.states import PublicState
from flowfabric.errors import TaskError
from flowfabric.task import Call, Task
from flowfabric.worker.context import Context

WORKERS = (1, 2)
SLOTS = 6
LEASE_TTL_SECONDS = 5

REMINDERS = 3
DECLINED_ORDER = 3
FLAKY_EVERY = 5
FLAKY_FAILURES = 2

_CHARGE_SECONDS = 0.25
_RETRY = RetryPolicy(max_retries=5, backoff=Fixed(delay_ms=700))
_REMINDER_DELAY = "3s"

R = TypeVar("R")


class Shop(NamedTuple):
    """The app, its tasks, and those of the flow."""

    app: App
    hello: Task[..., int]
    charge: Task[..., str]
    remind: Task[..., str]
    listen: Task[..., None]
    studio: Studio


def worker_lane(number: int) -> str:
    """A lane that only one worker serves: how the caller knows that it is there."""
    return f"{LANE}-{number}"


def open_shop(url: str, namespace: str, notes: Notes) -> Shop:
    app = App(
        url, namespace=namespace, concurrency=SLOTS, lease_ttl=LEASE_TTL_SECONDS, drain="500ms"
    )

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
        notes.finished(ctx)
        return receipt(order)

    @app.task(lane=LANE)
    async def remind(ctx: Context, order: int) -> str:
        notes.finished(ctx)
        return reminder(order)

    @app.task(lane=LANE, priority=FIRST)
    async def listen(ctx: Context) -> None:
        await asyncio.Event().wait()
        notes.finished(ctx)

    return Shop(app, hello, charge, remind, listen, open_studio(app, notes))


def receipt(order: int) -> str:
    return f"receipt {order}"


def reminder(order: int) -> str:
    return f"reminder of order {order}"


def hellos_of(shop: Shop) -> list[Call[int]]:
    """One for each worker, in its own lane."""
    return [shop.hello.options(lane=worker_lane(number)).bind() for number in WORKERS]


def orders_of(shop: Shop, count: int) -> list[Wanted]:
    """Payments, each with its own key: asking again must not charge again."""
    return [
        Wanted(
            f"charge order {order}",
            _plain(shop.charge.options(idempotency_key=f"order-{order}").bind(order)),
            PublicState.FAILED if order == DECLINED_ORDER else PublicState.COMPLETED,
            None if order == DECLINED_ORDER else receipt(order),
        )
        for order in range(1, count + 1)
    ]


def errands_of(shop: Shop) -> list[Wanted]:
    """Delayed work, and one that never ends by itself."""
    reminders = [
        Wanted(
            f"remind order {order}",
            _plain(shop.remind.options(delay=_REMINDER_DELAY).bind(order)),
            result=reminder(order),
        )
        for order in range(1, REMINDERS + 1)
    ]
    return [*reminders, Wanted("listen", _plain(shop.listen.bind()), PublicState.CANCELLED)]


def _plain(call: Call[R]) -> Call[object]:
    """Calls of different tasks go into one batch."""
    return Call(call.request, call.decode, call.home)
