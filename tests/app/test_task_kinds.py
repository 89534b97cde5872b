"""What people register besides plain functions: each works, or says what to write instead."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import pytest

from flowfabric import App, AsyncTask, Context, InvalidInput, SyncTask
from flowfabric.worker.callables import is_redefined
from tests.app.stage import running

pytestmark = pytest.mark.parametrize("store_kind", ["memory"])

Anything = Callable[..., Any]


class Shop:
    """Has methods of every kind."""

    def __init__(self, city: str) -> None:
        self.city = city

    def address(self, street: str) -> str:
        return f"{street}, {self.city}"

    async def order(self, ctx: Context, count: int) -> str:
        return f"{count} from {self.city}, attempt {ctx.attempt}"

    @classmethod
    def open(cls, city: str) -> str:
        return f"{cls.__name__} in {city}"

    @staticmethod
    def double(n: int) -> int:
        return 2 * n

    async def __call__(self, n: int) -> str:
        return f"{n} in {self.city}"


async def test_methods_with_an_object_are_tasks(app: App) -> None:
    shop = Shop("Oslo")
    address = app.task(shop.address)
    order = app.task(retries=1)(shop.order)
    opened = app.task(Shop.open)
    double = app.task(Shop.double)
    called = app.task("called")(shop)
    assert isinstance(called, AsyncTask)
    async with running(app):
        assert await (await address.start("Elm")).result() == "Elm, Oslo"
        assert await (await order.start(count=3)).result() == "3 from Oslo, attempt 0"
        assert await (await opened.start("Rome")).result() == "Shop in Rome"
        assert await (await double.start(4)).result() == 8
        assert await (await called.start(5)).result() == "5 in Oslo"
    assert (address("Elm"), opened("Rome"), double(4)) == ("Elm, Oslo", "Shop in Rome", 8)
    with pytest.raises(InvalidInput) as refused:
        await cast(Anything, called.start)("5")
    assert refused.value.field == "n"


async def test_a_static_method_can_be_decorated_in_its_class(app: App) -> None:
    class Inside:
        @app.task
        @staticmethod
        async def inner(n: int) -> int:
            return n + 1

        @staticmethod
        @app.task
        def outer(n: int) -> int:
            return n + 2

        @app.task
        def bare(n: int) -> int:  # noqa: N805
            return n + 3

    assert isinstance(Inside.inner, AsyncTask)
    async with running(app):
        tasks = (Inside.inner, Inside.outer, Inside().bare)
        assert [await (await task.start(1)).result() for task in tasks] == [2, 3, 4]
    assert Inside.outer(1) == 3


async def test_a_method_without_an_object_says_how(app: App) -> None:
    class Inside:
        def method(self, n: int) -> None: ...
        def for_class(cls, n: int) -> None: ...  # noqa: N805

    for function, first in ((Inside.method, "self"), (Inside.for_class, "cls")):
        with pytest.raises(InvalidInput, match="is a method of") as refused:
            app.task(function)
        assert refused.value.field == first
        assert f"app.task(the_object.{function.__name__})" in refused.value.hint
        assert "@staticmethod" in refused.value.hint
    with pytest.raises(InvalidInput, match="class method") as refused:
        cast(Anything, app.task)(classmethod(cast(Anything, Inside.method)))
    assert "after its class" in refused.value.hint


async def test_partials_and_lambdas_need_a_name(app: App) -> None:
    def power(base: int, exponent: int) -> int:
        return int(base**exponent)

    for nameless in (functools.partial(power, 2), lambda n: n, Shop("Oslo")):
        with pytest.raises(InvalidInput, match="has no name") as refused:
            cast(Anything, app.task)(nameless)
        assert refused.value.hint == "name it: app.task('name')(...)"
    of_two: SyncTask[..., int] = app.task("of_two")(functools.partial(power, 2))
    square: SyncTask[..., int] = app.task(name="square")(functools.partial(power, exponent=2))
    twice = cast(Anything, app.task("twice"))(lambda n: 2 * n)
    async with running(app):
        assert await (await of_two.start(5)).result() == 32
        assert await (await square.start(5)).result() == 25
        assert await (await twice.start(5)).result() == 10
    with pytest.raises(InvalidInput) as refused:
        await of_two.start("5")
    assert refused.value.field == "exponent"


async def test_generators_say_how(app: App) -> None:
    def rows() -> Iterator[int]:
        yield 1

    async def pages() -> AsyncIterator[int]:
        yield 1

    class Reader:
        def __call__(self) -> Iterator[int]:
            yield 1

    for name, function in (("rows", rows), ("pages", pages), ("r", Reader())):
        with pytest.raises(InvalidInput, match=f"task '{name}' is a generator") as refused:
            cast(Anything, app.task(name))(function)
        assert "return the list" in refused.value.hint


async def test_a_call_is_no_function(app: App) -> None:
    async def work() -> None: ...

    task = app.task(work)
    for call in (work(), task()):
        with pytest.raises(InvalidInput, match="is a call, not a function") as refused:
            cast(Anything, app.task)(call)
        assert "without calling it" in refused.value.hint


async def test_a_name_is_said_once(app: App) -> None:
    @app.task("first")
    async def work() -> int:
        return 1

    @app.task("second", retries=1, lane="slow")
    def other(ctx: Context) -> int:
        return 2

    assert (work.name, other.name) == ("first", "second")
    async with running(app):
        assert await (await other.start()).result() == 2
    with pytest.raises(InvalidInput, match="two names, 'a' and 'b'"):
        app.task("a", name="b")
    with pytest.raises(InvalidInput) as refused:
        app.task("")
    assert refused.value.field == "task"


def cell(app: App, number: int, module: str = "__main__", name: str = "work") -> Any:
    """What a notebook does: the same text is compiled and run again."""
    scope: dict[str, Any] = {"app": app, "__name__": module}
    text = f"@app.task\ndef {name}() -> int:\n    return {number}\n"
    exec(compile(text, f"<cell {number}>", "exec"), scope)  # noqa: S102
    return scope[name]


@pytest.mark.parametrize("module", ["__main__", "shop.tasks"])
async def test_a_definition_that_runs_again_replaces_the_one_before(
    app: App, module: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(app):
        assert await (await cell(app, 1, module).start()).result() == 1
        with caplog.at_level(logging.DEBUG, "flowfabric.app"):
            again = cell(app, 2, module)
        assert await (await again.start()).result() == 2
    assert "task work was redefined" in caplog.messages


async def test_another_function_of_the_name_is_refused(app: App) -> None:
    cell(app, 1, "shop.tasks")
    with pytest.raises(InvalidInput, match="a task 'work' already exists"):
        cell(app, 2, "shop.others")

    def factory(number: int) -> Callable[[], int]:
        def made() -> int:
            return number

        return made

    one = factory(1)
    app.task(one)
    app.task(one)
    with pytest.raises(InvalidInput, match="a task 'made' already exists"):
        app.task(factory(2))


def test_what_counts_as_the_same_definition(store_kind: str) -> None:
    oslo, rome = Shop("Oslo"), Shop("Rome")
    assert is_redefined(oslo.address, oslo.address)
    assert not is_redefined(oslo.address, rome.address)
    assert not is_redefined(oslo, rome)
    assert is_redefined(oslo, oslo)
    here: list[Callable[[], int]] = [lambda: 1, lambda: 2]
    assert not is_redefined(*here)
    for each in here:
        each.__module__ = "__main__"
    assert is_redefined(*here)


async def test_a_task_can_be_registered_with_another_app(app: App) -> None:
    other = App("memory://")

    @app.task
    async def work(ctx: Context, n: int) -> int:
        return n

    there = other.task("copied")(work.function)
    again = cast(Anything, other.task)(work)
    assert again.function is work.function
    async with running(other):
        assert await (await there.start(3)).result() == 3
        assert await (await again.start(4)).result() == 4
        assert await asyncio.gather(*(each.result() for each in [await again.start(5)])) == [5]
