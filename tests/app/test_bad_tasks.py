"""Functions that cannot be tasks, and options that a task cannot have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import pytest

from flowfabric import App, Context, Exponential, Fixed, InvalidInput, RetryPolicy

if TYPE_CHECKING:
    from fractions import Fraction as Missing

Register = Callable[..., object]


def star(*args: int) -> None: ...
def stars(**kwargs: int) -> None: ...
def only_positional(a: int, /) -> None: ...
def late(a: int, ctx: Context) -> None: ...
def unreadable(a: Missing) -> None: ...
def unreadable_result() -> list[Missing]:
    return []


def two_kinds(a: dict[str, int] | Fixed) -> None: ...
def plain(a: int) -> None: ...
def other(a: int) -> None: ...


BAD_FUNCTIONS: dict[str, tuple[object, str, str]] = {
    "any number of arguments": (star, "args", "name every argument"),
    "any named arguments": (stars, "kwargs", "name every argument"),
    "an argument without a name": (only_positional, "a", "name every argument"),
    "a context that is not first": (late, "ctx", "first parameter"),
    "a type nobody knows": (unreadable, "annotations", "module level"),
    "a result nobody knows": (unreadable_result, "annotations", "module level"),
    "a type that cannot be stored": (two_kinds, "annotations", "JSON types"),
    "no function": (5, "name", "decorate a function"),
    "a function without a name": (functools.partial(plain, 1), "name", "app.task('name')"),
}


@pytest.mark.parametrize("name", BAD_FUNCTIONS)
def test_a_function_that_cannot_be_a_task_is_named(name: str) -> None:
    function, field, remedy = BAD_FUNCTIONS[name]
    app = App("memory://")
    with pytest.raises(InvalidInput) as refused:
        cast(Register, app.task)(function)
    assert refused.value.field == field
    assert remedy in refused.value.hint
    assert app._handlers == {}


def test_a_callable_without_a_name_can_be_given_one() -> None:
    app = App("memory://")
    task = app.task(name="half")(functools.partial(plain, a=1))
    assert task.name == "half"


def test_two_tasks_cannot_have_one_name() -> None:
    app = App("memory://")
    app.task(name="work")(plain)
    with pytest.raises(InvalidInput, match="a task 'work' already exists") as refused:
        app.task(name="work")(other)
    assert (refused.value.field, refused.value.hint) == ("name", "rename one")


def policy(**fields: object) -> RetryPolicy:
    return cast(Callable[..., RetryPolicy], RetryPolicy)(**fields)


BAD_OPTIONS: dict[str, tuple[dict[str, object], str]] = {
    "an empty name": ({"name": " "}, "task"),
    "a name too long": ({"name": "n" * 257}, "task"),
    "a name with a space": ({"name": "my task"}, "task"),
    "a lane without a name": ({"lane": ""}, "lane"),
    "a lane too long": ({"lane": "x" * 65}, "lane"),
    "a lane in another script": ({"lane": "größe"}, "lane"),
    "a priority that is no number": ({"priority": "high"}, "priority"),
    "negative retries": ({"retries": -1}, "retries"),
    "retries of truth": ({"retries": True}, "retries"),
    "retries as text": ({"retries": "3"}, "retries"),
    "half a retry": ({"retries": 1.5}, "retries"),
    "too many retries": ({"retries": 2**31}, "retries"),
    "a policy with negative retries": ({"retries": policy(max_retries=-1)}, "retries"),
    "a policy with a span for a pause": ({"retries": policy(backoff="1s")}, "retries"),
    "a policy with an object": ({"retries": policy(backoff=object())}, "retries"),
    "a negative pause": ({"retries": RetryPolicy(backoff=Fixed(-5))}, "retries"),
    "a shrinking pause": ({"retries": RetryPolicy(backoff=Exponential(multiplier=0.5))}, "retries"),
    "an endless pause": (
        {"retries": RetryPolicy(backoff=Exponential(multiplier=float("inf")))},
        "retries",
    ),
    "categories as one text": ({"retries": policy(retryable_categories="busy")}, "retries"),
    "a negative timeout": ({"attempt_timeout": -1}, "attempt_timeout"),
    "no time at all": ({"attempt_timeout": 0}, "attempt_timeout"),
    "a timeout that is no number": ({"attempt_timeout": float("nan")}, "attempt_timeout"),
    "an endless timeout": ({"attempt_timeout": float("inf")}, "attempt_timeout"),
    "a timeout in parsecs": ({"attempt_timeout": "3pc"}, "attempt_timeout"),
    "another end of an attempt": ({"on_attempt_timeout": "explode"}, "on_attempt_timeout"),
    "negative reclaims": ({"max_reclaims": -1}, "max_reclaims"),
    "reclaims as text": ({"max_reclaims": "many"}, "max_reclaims"),
    "negative replays": ({"max_replays": -1}, "max_replays"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_a_bad_option_is_named(name: str) -> None:
    options, field = BAD_OPTIONS[name]
    app = App("memory://")
    with pytest.raises(InvalidInput) as refused:
        cast(Register, cast(Register, app.task)(**options))(plain)
    assert refused.value.field == field
    assert refused.value.hint
    assert app._handlers == {}


def test_a_bad_policy_names_the_field_inside_it() -> None:
    app = App("memory://")
    with pytest.raises(InvalidInput, match=r"backoff\.delay_ms"):
        app.task(retries=RetryPolicy(backoff=Fixed(-5)))


@pytest.mark.parametrize("priority", [-5, 9_001, 10**30])
async def test_a_priority_out_of_range_becomes_the_nearest(priority: int) -> None:
    app = App("memory://")

    @app.task
    async def work() -> None: ...

    handle = await work.options(priority=priority).start()
    assert (await handle.status()).priority == (0 if priority < 0 else 9_000)
