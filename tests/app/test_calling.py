"""A task is a function: called, it runs here and now; forgotten, it says what to write."""

from __future__ import annotations

import asyncio
import gc
import inspect
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from flowfabric import App, AsyncTask, Context, InvalidInput, Ref, SyncTask
from tests.app.stage import running

on_memory = pytest.mark.parametrize("store_kind", ["memory"])


class Kitchen:
    """Tasks of every kind."""

    def __init__(self, app: App) -> None:
        @app.task
        def add(a: int, b: int = 10) -> int:
            """The sum."""
            return a + b

        @app.task
        async def shout(text: str) -> str:
            await asyncio.sleep(0)
            return text.upper()

        @app.task
        async def name(ctx: Context, prefix: str) -> str:
            return f"{prefix} {ctx.id}"

        @app.task
        def name_plainly(ctx: Context, prefix: str) -> str:
            ctx.log.info("asked in a thread")
            return f"{prefix} {ctx.id}"

        self.add, self.shout = add, shout
        self.name, self.name_plainly = name, name_plainly


@pytest.fixture
def kitchen(app: App) -> Kitchen:
    return Kitchen(app)


@on_memory
async def test_a_call_runs_the_function_here_and_now(kitchen: Kitchen) -> None:
    assert (kitchen.add(1, 2), kitchen.add(1), kitchen.add(b=1, a=1)) == (3, 11, 2)
    assert await kitchen.shout("x") == "X"
    assert isinstance(kitchen.add, SyncTask)
    assert isinstance(kitchen.shout, AsyncTask)
    anyhow: Any = kitchen.add
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        anyhow()


@on_memory
async def test_a_call_of_an_async_task_is_a_coroutine_like_any_other(kitchen: Kitchen) -> None:
    ref = kitchen.shout("x")
    assert isinstance(ref, Ref)
    assert isinstance(ref, Coroutine)
    assert repr(ref) == "<Ref of shout(...)>"
    assert list(await asyncio.gather(ref, kitchen.shout("y"))) == ["X", "Y"]
    task = asyncio.create_task(kitchen.shout("z"))
    await asyncio.sleep(0)
    assert task.get_stack()[0].f_code.co_name == "shout"
    assert await task == "Z"
    assert await asyncio.wait_for(kitchen.shout("w"), 5) == "W"
    assert await asyncio.to_thread(lambda: asyncio.run(kitchen.shout("v"))) == "V"


@on_memory
async def test_a_call_can_be_cancelled_and_awaited_once(kitchen: Kitchen) -> None:
    task = asyncio.create_task(kitchen.shout("x"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    ref = kitchen.shout("x")
    await ref
    with pytest.raises(RuntimeError, match="already awaited"):
        await ref


@on_memory
async def test_a_task_tells_what_its_function_tells(kitchen: Kitchen) -> None:
    assert (kitchen.add.__name__, kitchen.add.__doc__) == ("add", "The sum.")
    assert str(inspect.signature(kitchen.add)) == "(a: 'int', b: 'int' = 10) -> 'int'"
    assert str(inspect.signature(kitchen.name)) == "(prefix: 'str') -> 'str'"
    assert kitchen.add.function(1, 2) == 3
    assert list(inspect.signature(kitchen.name.function).parameters) == ["ctx", "prefix"]


@on_memory
@pytest.mark.parametrize("which", ["name", "name_plainly"])
async def test_outside_of_an_attempt_there_is_no_context(kitchen: Kitchen, which: str) -> None:
    task: Any = getattr(kitchen, which)
    with pytest.raises(InvalidInput, match="takes a context") as refused:
        task("x")
    assert f"`await {which}.start(...)`" in refused.value.hint
    assert f"`{which}.function(context, ...)`" in refused.value.hint


@on_memory
async def test_a_call_inside_an_attempt_gets_its_context(app: App, kitchen: Kitchen) -> None:
    @app.task
    async def outer() -> list[str]:
        found = [await kitchen.name("a"), kitchen.name_plainly("b")]
        return [*found, *await asyncio.gather(kitchen.name("c"), kitchen.name("d"))]

    @app.task
    def in_a_thread() -> list[str]:
        return [kitchen.name_plainly("a"), asyncio.run(asyncio.wait_for(kitchen.name("b"), 5))]

    @app.task
    async def handed_on(ctx: Context) -> bool:
        passed: Callable[..., Coroutine[object, None, str]] = kitchen.name
        return await passed(ctx, "x") == await kitchen.name("x")

    async with running(app):
        first, then = await outer.start(), await in_a_thread.start()
        assert await first.result() == [f"{letter} {first.id}" for letter in "abcd"]
        assert await then.result() == [f"{letter} {then.id}" for letter in "ab"]
        assert await (await handed_on.start()).result()
        for handle in (first, then):
            lines = [line.message for each in await handle.attempts() for line in each.log]
            assert lines == ["asked in a thread"]
    with pytest.raises(InvalidInput, match="takes a context"):
        kitchen.name("x")


def forgotten(call: Callable[[], object]) -> list[str]:
    """What is warned of when the answer of a call is dropped."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
        gc.collect()
    assert {each.category for each in found} <= {RuntimeWarning}
    return [str(each.message) for each in found]


@on_memory
async def test_what_is_never_awaited_says_what_to_write(kitchen: Kitchen) -> None:
    (call,) = forgotten(lambda: kitchen.shout("x"))
    assert call.startswith("shout(...) was never awaited; write `await shout(...)` to run it here")
    assert call.endswith("or `await shout.start(...)` to submit it")
    (start,) = forgotten(lambda: kitchen.add.start(1))
    assert start.startswith("add.start(...) was never awaited, so nothing was submitted;")
    assert start.endswith("write `await add.start(...)`")


@on_memory
async def test_what_is_awaited_or_closed_warns_of_nothing(kitchen: Kitchen) -> None:
    assert forgotten(lambda: kitchen.shout("x").close()) == []
    ref, start = kitchen.shout("x"), kitchen.add.start(1)
    await asyncio.gather(ref, start)
    assert forgotten(lambda: None) == []
    thrown = kitchen.shout("x")
    with pytest.raises(KeyError):
        thrown.throw(KeyError("x"))
    assert forgotten(lambda: None) == []
