"""What a type checker says about tasks: right use is accepted, each line marked `error` is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import flowfabric as ff

app = ff.App("memory://")


def used(*_: object) -> None: ...


class Oven:
    def bake(self, minutes: int) -> str:
        return f"{minutes} minutes"

    @staticmethod
    def warm(degrees: float) -> bool:
        return degrees > 50

    async def __call__(self, ctx: ff.Context, loaf: str) -> int:
        return len(loaf)


@app.task
def weigh(grams: int, tare: int = 0, *, exact: bool = False) -> float:
    return float(grams - tare)


@app.task(retries=2, attempt_timeout="30s")
async def knead(ctx: ff.Context, dough: str, minutes: int = 5) -> str:
    return dough * minutes


@app.task("rising", lane="slow")
def rise(ctx: ff.Context, hours: int) -> list[int]:
    return [hours]


@app.task()
async def sell(loaves: dict[str, int] | None = None) -> None: ...


@app.task
def label(tags: list[str], delay: int, name: str) -> str:
    return name


bake = app.task(Oven().bake)
warm = app.task(Oven.warm)
called = app.task("called")(Oven())


def kinds() -> None:
    assert_type(weigh(500, 20), float)
    assert_type(rise(3), list[int])
    assert_type(bake(40), str)
    assert_type(warm(60.5), bool)
    assert_type(label(["x"], 3, "n"), str)
    assert_type(weigh.options(priority=5)(500), float)
    plain: Callable[[int], float] = weigh
    anyhow: ff.Task[..., str] = knead
    used(plain, anyhow, weigh.function(1), weigh.name)

    weigh("500")  # error
    weigh()  # error
    weigh(500, 20, True)  # error
    weigh(500, color="red")  # error
    rise()  # error
    warm("60")  # error
    text: str = weigh(500)  # error
    other: ff.Task[..., int] = knead  # error
    used(text, other)


async def calls(ctx: ff.Context) -> None:
    assert_type(await knead("d"), str)
    assert_type(knead("d", minutes=3), ff.Ref[str])
    assert_type(await called("rye"), int)
    first, second = await asyncio.gather(knead("a"), sell())
    assert_type(first, str)
    assert_type(second, None)
    assert_type(asyncio.create_task(knead("a")), asyncio.Task[str])
    assert_type(await knead.function(ctx, "d"), str)

    knead("d").upper()  # error
    await weigh(500)  # error
    await knead(ctx, "d")  # error
    await knead(5)  # error


async def starts() -> None:
    assert_type(await knead.start("d"), ff.Handle[str])
    assert_type(await (await knead.start("d", minutes=3)).result(), str)
    assert_type(await (await weigh.start(500, exact=True)).result(), float)
    assert_type(weigh.bind(500), ff.Call[float])
    assert_type(await app.start_many(weigh.bind(each) for each in range(3)), list[ff.Handle[float]])
    many = await asyncio.gather(*(rise.start(each) for each in range(3)))
    assert_type(many, list[ff.Handle[list[int]]])
    soon = knead.options(delay="5m", deadline=datetime.now(UTC) + timedelta(hours=1))
    await soon.options(priority=5, lane="x", tags={"a.b": "c"}, idempotency_key="k").start("d")
    await label.options(delay="5m", tags={"a.b": "c"}).start(["x"], delay=3, name="n")

    await knead.start()  # error
    await knead.start(5)  # error
    await knead.start("d", loud=True)  # error
    await knead.start("d", delay="5m")  # error
    await label.start({"a.b": "c"}, 3, "n")  # error
    knead.bind("d", "3")  # error
    knead.options(delay=["5m"])  # error
    knead.options(colour="red")  # error
    number: int = await (await knead.start("d")).result()  # error
    await app.start_many([weigh])  # error
    await app.start_many([weigh.start(500)])  # error
    used(number)


def any_task(task: ff.Task[..., Any]) -> str:
    return task.name


used(any_task(weigh), any_task(knead))
any_task(weigh.function)  # error
