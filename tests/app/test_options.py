"""Options of a start: through `options`, or as keywords that no parameter is called like."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from flowfabric import App, Context, IdempotencyConflict, InvalidInput, PublicState, Task
from tests.app.stage import running, written

on_memory = pytest.mark.parametrize("store_kind", ["memory"])


def label_of(app: App) -> Task[..., str]:
    @app.task
    async def label(tags: list[str], delay: int, name: str = "") -> str:
        return f"{'-'.join(tags)}:{delay}:{name}"

    return label


async def test_parameters_may_be_called_like_options(app: App) -> None:
    label = label_of(app)
    soon = label.options(tags={"demo.tenant": "acme"}, delay="1ms", priority=5)
    async with running(app):
        assert await (await label.start(tags=["x"], delay=3, name="n")).result() == "x:3:n"
        handle = await soon.start(["x", "y"], delay=3)
        assert await handle.result() == "x-y:3:"
        status = await handle.status()
    assert (status.tags, status.priority) == ({"demo.tenant": "acme"}, 5)


@on_memory
async def test_a_keyword_that_no_parameter_has_is_an_option(app: App) -> None:
    label = label_of(app)
    handle = await label.start(["x"], 3, priority=7, lane="other", deadline="1h")
    status = await handle.status()
    assert (status.priority, status.lane) == (7, "other")
    assert status.deadline_ms is not None
    both = label.options(priority=1, tags={"a.b": "c"}).bind(["x"], 3, priority=2).request
    assert (both.priority, both.tags) == (2, {"a.b": "c"})
    with pytest.raises(InvalidInput, match="has no argument 'colour'"):
        await label.start(["x"], 3, colour="red")


@on_memory
async def test_options_make_a_copy_and_add_up(app: App) -> None:
    @app.task(priority=3)
    async def work(ctx: Context, n: int) -> int:
        return n

    later = work.options(delay="1h")
    both = later.options(priority=9, idempotency_key="k")
    assert type(both) is type(work)
    assert (both.name, both.function) == ("work", work.function)
    assert work.bind(1).request.delay is None
    assert (later.bind(1).request.priority, later.bind(1).request.key) == (3, None)
    assert (both.bind(1).request.priority, both.bind(1).request.key) == (9, "k")
    assert both.bind(1).request.delay == later.bind(1).request.delay is not None
    assert (await (await both.start(1)).status()).public_state is PublicState.DELAYED
    with pytest.raises(IdempotencyConflict):
        await both.start(2)
    instant = datetime.now(UTC) + timedelta(hours=1)
    handle = await work.options(delay=instant).start(1)
    assert (await handle.status()).public_state is PublicState.DELAYED


BAD: dict[str, tuple[dict[str, object], str]] = {
    "a lane without a name": ({"lane": ""}, "lane"),
    "a priority that is no number": ({"priority": "high"}, "priority"),
    "a delay in parsecs": ({"delay": "3pc"}, "delay"),
    "a deadline without a time zone": ({"deadline": datetime(2030, 1, 1)}, "deadline"),  # noqa: DTZ001
    "tags as a list": ({"tags": ["a.b"]}, "tags"),
    "the tag of a name": ({"tags": {"flow.member": "x"}}, "tags"),
    "a key that is a number": ({"idempotency_key": 5}, "idempotency_key"),
    "a name with a space": ({"name": "my member"}, "name"),
    "an empty name": ({"name": ""}, "name"),
}


@on_memory
@pytest.mark.parametrize("name", BAD)
async def test_a_bad_option_is_named_where_it_is_said(app: App, name: str) -> None:
    options, field = BAD[name]
    label = label_of(app)
    with pytest.raises(InvalidInput) as refused:
        cast(Callable[..., object], label.options)(**options)
    assert refused.value.field == field
    assert refused.value.hint


@on_memory
async def test_only_a_member_of_a_graph_has_a_name(app: App) -> None:
    named = label_of(app).options(name="left")
    with pytest.raises(InvalidInput, match="only members of a graph have names") as refused:
        await named.start(["x"], 3)
    assert refused.value.field == "name"
    assert "add the task to a graph" in refused.value.hint
    with pytest.raises(InvalidInput, match="only members of a graph have names"):
        named.bind(["x"], 3)


@on_memory
async def test_what_is_no_call_says_how(app: App) -> None:
    label = label_of(app)

    @app.task
    async def shout(text: str) -> str:
        return text

    for given, hint in (
        (label, "label.bind(...)"),
        (shout.start("x"), "`.bind(...)`"),
        (shout("x"), "`.bind(...)`"),
        (label.function, "`task.bind(...)`"),
    ):
        with pytest.raises(InvalidInput, match="is not a call") as refused:
            await app.start_many(cast(Any, [given]))
        assert (refused.value.field, hint in refused.value.hint) == ("calls", True)
    g = app.graph("calls")
    with pytest.raises(InvalidInput, match="is not a task") as refused:
        g.add(cast(Any, shout("x")))
    assert "graph.add(task, ...)" in refused.value.hint
    assert await written(app) == (0, 0)


@on_memory
async def test_a_value_that_is_not_here_yet_says_how_to_get_it(app: App) -> None:
    @app.task
    async def shout(text: str) -> str:
        return text

    anyhow: Task[..., str] = shout
    node = app.graph("other").add(shout, "x")
    handle = await shout.start("x")
    values: list[tuple[object, str]] = [
        (shout("x"), "await it"),
        (shout.start("x"), "await it"),
        (handle, "await handle.result()"),
        (node, "graph.add(task, node)"),
        (shout, "pass a result of the task"),
    ]
    for value, hint in values:
        with pytest.raises(InvalidInput, match="task 'shout': got") as refused:
            await anyhow.start(value)
        assert (refused.value.field, hint in refused.value.hint) == ("text", True)
    with pytest.raises(InvalidInput, match="task 'shout': got") as refused:
        app.graph("here").add(anyhow, shout("x"))
    assert "await it" in refused.value.hint


async def test_calls_of_another_app_are_refused_unless_it_is_the_same_store(
    app: App, url: str
) -> None:
    same = App(store=app.engine.store) if url == "memory://" else App(url)
    elsewhere = [
        App("memory://"),
        App(url, namespace="other"),
        App(store=app.engine.store, namespace="other"),
    ]
    label = label_of(same)
    handles = await app.start_many([label.bind(["x"], 1)])
    assert (await handles[0].status()).kind == "label"
    app.graph("both").add(label, ["x"], 1)
    for other in elsewhere:
        foreign = label_of(other)
        with pytest.raises(InvalidInput, match="'label' belongs to another app") as refused:
            await app.start_many([foreign.bind(["x"], 1)])
        assert "the app that the task was registered with" in refused.value.hint
        with pytest.raises(InvalidInput, match="'label' belongs to another app"):
            app.graph("both").add(foreign, ["x"], 1)
    await same.close()
