"""Mistakes in a start: a typed error that names the field and the remedy, and nothing written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import cast

import pytest

from flowfabric import App, IdempotencyConflict, InvalidInput, LaneState, Task
from flowfabric.errors import Invalid, LaneClosed, PayloadTooLarge
from tests.app.stage import written

MIB = 1 << 20


@dataclass
class Address:
    city: str
    numbers: list[int]


@dataclass
class Villa(Address):
    rooms: int


@pytest.fixture
async def task(app: App) -> Task[..., None]:
    @app.task
    async def send(to: Address, count: int = 1, note: str = "") -> None: ...

    await app.connect()
    return send


HOME = Address("Oslo", [1])
CIRCLE: list[object] = []
CIRCLE.append(CIRCLE)

BAD_ARGUMENTS: dict[str, tuple[tuple[object, ...], dict[str, object], tuple[str, str]]] = {
    "a missing one": ((), {}, ("to", "needs to")),
    "one too many": ((HOME, 1, "x", 4), {}, ("arguments", "takes 3 positional")),
    "an unknown one": ((HOME,), {"colour": "red"}, ("colour", "has no argument 'colour'")),
    "one given twice": ((HOME,), {"to": HOME}, ("to", "got 'to' twice")),
    "a wrong type": ((HOME, "two"), {}, ("count", "Expected `int`, got `str`")),
    "a wrong type deep inside": (
        ({"city": "Oslo", "numbers": [1, "2"]},),
        {},
        ("to.numbers[1]", "Expected `int`, got `str`"),
    ),
    "a missing field inside": (({"city": "Oslo"},), {}, ("to", "numbers")),
    "no number": ((HOME, float("nan")), {}, ("count", "is nan")),
    "a subclass with more fields": ((Villa("Oslo", [1], 3),), {}, ("to", "is a Villa")),
    "what cannot be stored": ((HOME,), {"note": object()}, ("note", "cannot be stored")),
    "what contains itself": ((HOME,), {"note": CIRCLE}, ("note", "recursion")),
    "half a character": ((HOME,), {"note": "\ud800"}, ("note", "surrogates")),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
async def test_a_bad_argument_is_named_and_nothing_is_written(
    app: App, task: Task[..., None], name: str
) -> None:
    args, kwargs, (field, told) = BAD_ARGUMENTS[name]
    before = await written(app)
    with pytest.raises(InvalidInput) as refused:
        await cast(Callable[..., Awaitable[object]], task.start)(*args, **kwargs)
    assert refused.value.field == field
    assert told in refused.value.message
    assert refused.value.hint
    assert await written(app) == before == (0, 0)


UNSAID: dict[str, tuple[object, tuple[str, str]]] = {
    "no number": (float("nan"), ("value", "is nan")),
    "a number without end": ([0.5, float("inf")], ("value[1]", "is inf")),
    "a set": ({1, 2}, ("value", "is a set and would arrive as a list")),
    "a moment": (datetime(2030, 1, 1, tzinfo=UTC), ("value", "is a datetime")),
    "a record": ({"home": HOME}, ("value.home", "is an Address and would arrive as a dict")),
}


@pytest.mark.parametrize("name", UNSAID)
async def test_a_value_that_would_change_is_refused_where_no_annotation_says_its_type(
    app: App, name: str
) -> None:
    # Without annotations: that is the case.
    def unsaid(first, value, node=None) -> None: ...  # type: ignore[no-untyped-def]

    take = app.task(name="take")(cast(Callable[..., None], unsaid))
    value, (field, told) = UNSAID[name]
    with pytest.raises(InvalidInput) as refused:
        await take.start(1, value)
    assert (refused.value.field, told in refused.value.message) == (field, True)
    assert refused.value.hint
    g = app.graph("values")
    first = g.add(take, 1, 2)
    for rest in ((), (first,)):
        with pytest.raises(InvalidInput) as refused:
            g.add(take, 1, value, *rest)
        assert (refused.value.field, told in refused.value.message) == (field, True)
    with pytest.raises(InvalidInput) as refused:
        g.add(take, 1, {"node": first, "beside": value})
    assert refused.value.field == field.replace("value", "value.beside", 1)
    assert await written(app) == (0, 0)


async def test_what_is_said_beside_a_node_is_checked(app: App) -> None:
    @app.task
    async def send(to: Address, rates: dict[str, float]) -> float:
        return rates["own"]

    g = app.graph("values")
    rate = g.add(send, HOME, {"own": 0.5})
    anyhow: Task[..., float] = send
    with pytest.raises(InvalidInput) as refused:
        g.add(anyhow, Villa("Oslo", [1], 3), {"own": rate})
    assert refused.value.field == "to"
    with pytest.raises(InvalidInput) as refused:
        g.add(anyhow, {"city": "Oslo", "numbers": ["1"]}, {"own": rate})
    assert (refused.value.field, "Expected `int`" in refused.value.message) == (
        "to.numbers[0]",
        True,
    )
    with pytest.raises(InvalidInput) as refused:
        g.add(anyhow, HOME, {"own": rate, "other": float("nan")})
    assert refused.value.field == "rates.other"


async def test_a_mismatch_shows_how_to_call_it(task: Task[..., None]) -> None:
    with pytest.raises(InvalidInput) as refused:
        task.bind()
    assert refused.value.hint == "call it as send(to, count, note)"


YESTERDAY = datetime.now(UTC) - timedelta(days=1)
IN_A_YEAR = datetime.now(UTC) + timedelta(days=365)

BAD_OPTIONS: dict[str, tuple[dict[str, object], str]] = {
    "a negative delay": ({"delay": -1}, "delay"),
    "a negative delay as text": ({"delay": "-5s"}, "delay"),
    "a delay that is no number": ({"delay": float("nan")}, "delay"),
    "an endless delay": ({"delay": float("inf")}, "delay"),
    "a delay of a century and more": ({"delay": timedelta(days=40_000)}, "delay"),
    "a delay in no unit": ({"delay": "3 fortnights"}, "delay"),
    "a delay of truth": ({"delay": True}, "delay"),
    "an empty delay": ({"delay": ""}, "delay"),
    "a negative deadline": ({"deadline": timedelta(seconds=-1)}, "deadline"),
    "an endless deadline": ({"deadline": float("-inf")}, "deadline"),
    "a deadline at once": ({"deadline": 0}, "deadline"),
    "a deadline in the past": ({"deadline": YESTERDAY}, "deadline"),
    "a deadline without a zone": ({"deadline": datetime(2030, 1, 1)}, "deadline"),  # noqa: DTZ001
    "a delay without a zone": ({"delay": datetime(2030, 1, 1)}, "delay"),  # noqa: DTZ001
    "a delay that is a date": ({"delay": date(2030, 1, 1)}, "delay"),
    "a delay beyond the years": ({"delay": datetime(1969, 1, 1, tzinfo=UTC)}, "delay"),
    "a deadline before the start": ({"delay": "2h", "deadline": "1h"}, "deadline"),
    "a deadline at the start": ({"delay": IN_A_YEAR, "deadline": IN_A_YEAR}, "deadline"),
    "a deadline before an instant": ({"delay": IN_A_YEAR, "deadline": "1h"}, "deadline"),
    "a lane without a name": ({"lane": ""}, "lane"),
    "a lane too long": ({"lane": "x" * 65}, "lane"),
    "a lane that cannot be printed": ({"lane": "a\tb"}, "lane"),
    "a lane that is no text": ({"lane": 5}, "lane"),
    "a tag without a dot": ({"tags": {"owner": "ada"}}, "tags"),
    "a tag in capitals": ({"tags": {"Team.Owner": "ada"}}, "tags"),
    "a tag key too long": ({"tags": {"a." + "b" * 127: "x"}}, "tags"),
    "a tag value too long": ({"tags": {"team.owner": "a" * 257}}, "tags[team.owner]"),
    "a tag value that is no text": ({"tags": {"team.owner": 5}}, "tags[team.owner]"),
    "a tag value with a NUL": ({"tags": {"team.owner": "a\0"}}, "tags[team.owner]"),
    "too many tags": ({"tags": {f"a.b{n}": "x" for n in range(65)}}, "tags"),
    "tags that are a list": ({"tags": ["team.owner"]}, "tags"),
    "tags that are an empty list": ({"tags": []}, "tags"),
    "a key too long": ({"idempotency_key": "k" * 513}, "idempotency_key"),
    "a key that is no text": ({"idempotency_key": 0}, "idempotency_key"),
    "a key with a NUL": ({"idempotency_key": "a\0"}, "idempotency_key"),
    "a priority that is no number": ({"priority": "high"}, "priority"),
    "a priority of truth": ({"priority": True}, "priority"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
async def test_a_bad_option_is_named_and_nothing_is_written(
    app: App, task: Task[..., None], name: str
) -> None:
    options, field = BAD_OPTIONS[name]
    before = await written(app)
    with pytest.raises(InvalidInput) as refused:
        await cast(Callable[..., Awaitable[object]], task.start)(HOME, **options)
    assert refused.value.field == field
    assert refused.value.hint
    assert str(refused.value).startswith(f"{field}: ")
    assert await written(app) == before == (0, 0)


async def test_a_payload_over_a_mebibyte_is_refused(app: App, task: Task[..., None]) -> None:
    overhead = len(b'{"to":{"city":"Oslo","numbers":[1]},"note":""}')
    await task.start(HOME, note="x" * (MIB - overhead))
    before = await written(app)
    with pytest.raises(PayloadTooLarge, match=rf"{MIB + 1} bytes are over the limit") as refused:
        await task.start(HOME, note="x" * (MIB - overhead + 1))
    assert refused.value.field == "arguments"
    assert "pass a reference" in refused.value.hint
    assert await written(app) == before


@pytest.mark.parametrize("state", [LaneState.DRAINING, LaneState.DISABLED])
async def test_a_closed_lane_takes_no_work(
    app: App, task: Task[..., None], state: LaneState
) -> None:
    await app.engine.set_lane("default", state)
    before = await written(app)
    with pytest.raises(LaneClosed, match=f"lane 'default' is {state}") as refused:
        await task.start(HOME)
    assert (refused.value.field, bool(refused.value.hint)) == ("lane", True)
    assert await written(app) == before
    await task.options(lane="another").start(HOME)


async def test_one_bad_call_among_many_submits_none(app: App, task: Task[..., None]) -> None:
    with pytest.raises(InvalidInput):
        await app.start_many(task.bind(HOME, count) for count in (1, "two"))
    assert await written(app) == (0, 0)


async def test_one_refused_order_among_many_spoils_no_other(
    app: App, task: Task[..., None]
) -> None:
    await task.options(idempotency_key="k").start(HOME, 1)
    calls = [
        task.bind(HOME, 2),
        task.options(idempotency_key="k").bind(HOME, 2),
        task.bind(HOME, 3),
    ]
    with pytest.raises(IdempotencyConflict):
        await app.start_many(calls)
    assert (await written(app))[0] == 3


async def test_every_mistake_is_one_class(task: Task[..., None]) -> None:
    """Who only wants to know that the call was wrong catches `Invalid`."""
    with pytest.raises(Invalid):
        task.bind()
    with pytest.raises(Invalid):
        task.bind(HOME, note="x" * MIB)
