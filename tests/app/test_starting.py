"""A task is started and its result comes back, with every option that a start has."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

import pytest

from flowfabric import App, Context, IdempotencyConflict, PublicState
from flowfabric.core.ids import parse_execution_id, partition_of
from tests.app.stage import kinds, running


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


async def test_a_task_runs_and_its_result_comes_back(app: App) -> None:
    @app.task
    async def add(a: int, b: int = 2) -> int:
        return a + b

    async with running(app):
        assert await (await add.start(1)).result() == 3
        assert await (await add.start(1, 5)).result() == 6
        assert await (await add.start(b=1, a=1)).result() == 2


async def test_a_start_outside_a_running_block_is_kept_for_later(app: App) -> None:
    @app.task
    async def add(a: int) -> int:
        return a + 1

    handle = await add.start(1)
    assert (await handle.status()).public_state is PublicState.WAITING
    async with running(app):
        assert await handle.result() == 2


async def test_a_plain_function_runs_in_a_thread_of_its_own(app: App) -> None:
    @app.task
    def where() -> str:
        return threading.current_thread().name

    async with running(app):
        name = await (await where.start()).result()
    assert name.startswith("flowfabric-task")
    assert name != threading.current_thread().name


async def test_plain_functions_run_side_by_side(app: App) -> None:
    both = threading.Barrier(2, timeout=10)

    @app.task
    def meet() -> int:
        return both.wait()

    async with running(app):
        handles = await app.start_many(meet.bind() for _ in range(2))
        assert sorted([await handle.result() for handle in handles]) == [0, 1]


async def test_what_returns_a_coroutine_is_awaited(app: App) -> None:
    async def work(n: int) -> int:
        return n * 2

    @app.task
    def wrapped(n: int) -> object:
        return work(n)

    async with running(app):
        assert await (await wrapped.start(4)).result() == 8


async def test_values_keep_their_types(app: App) -> None:
    @app.task
    async def move(start: Point, when: datetime, blob: bytes, by: list[Point]) -> Point:
        assert when.tzinfo is not None
        assert blob == b"\0\xff"
        return Point(start.x + sum(p.x for p in by), start.y + sum(p.y for p in by))

    async with running(app):
        now = datetime.now(UTC)
        handle = await move.start(Point(1, 2), now, b"\0\xff", by=[Point(1), Point(0, 5)])
        assert await handle.result() == Point(2, 7)


async def test_many_starts_answer_in_their_order(app: App) -> None:
    @app.task
    async def echo(n: int) -> int:
        return n

    async with running(app):
        handles = await app.start_many(echo.bind(n) for n in range(1_200))
        assert [await handle.result() for handle in handles] == list(range(1_200))
    assert len({handle.id for handle in handles}) == 1_200


async def test_many_starts_may_be_of_different_tasks(app: App) -> None:
    @app.task
    async def one() -> int:
        return 1

    @app.task
    async def word() -> str:
        return "two"

    async with running(app):
        handles = await app.start_many([one.bind(), word.bind()])
        assert [await handle.result() for handle in handles] == [1, "two"]


async def test_no_starts_are_no_work(app: App) -> None:
    assert await app.start_many([]) == []


async def test_the_same_key_answers_the_same_execution(app: App) -> None:
    ran: list[int] = []

    @app.task
    async def once(n: int) -> int:
        ran.append(n)
        return n

    async with running(app):
        first = await once.options(idempotency_key="order-1").start(1)
        assert await first.result() == 1
        again = await once.options(idempotency_key="order-1").start(1)
        assert again.id == first.id
        assert await again.result() == 1
    assert ran == [1]


async def test_a_key_that_was_used_for_something_else_is_a_conflict(app: App) -> None:
    @app.task
    async def once(n: int) -> int:
        return n

    first = await once.options(idempotency_key="order-1").start(1)
    with pytest.raises(IdempotencyConflict, match="order-1") as refused:
        await once.options(idempotency_key="order-1").start(2)
    assert refused.value.field == "idempotency_key"
    assert refused.value.details == {"execution": first.id}
    assert refused.value.hint


async def test_one_key_in_one_call_makes_one_execution(app: App) -> None:
    @app.task
    async def once(n: int) -> int:
        return n

    handles = await app.start_many(once.options(idempotency_key="k").bind(1) for _ in range(3))
    assert len({handle.id for handle in handles}) == 1


async def test_concurrent_starts_with_one_key_make_one_execution(app: App) -> None:
    @app.task
    async def once(n: int) -> int:
        return n

    handles = await asyncio.gather(*(once.options(idempotency_key="k").start(1) for _ in range(20)))
    assert len({handle.id for handle in handles}) == 1


async def test_tags_are_kept(app: App) -> None:
    @app.task
    async def work() -> None: ...

    handle = await work.options(tags={"team.owner": "ada", "demo.tenant": "acme"}).start()
    assert (await handle.status()).tags == {"demo.tenant": "acme", "team.owner": "ada"}


async def test_a_delay_keeps_it_from_starting(app: App) -> None:
    @app.task
    async def work() -> int:
        return 1

    later = await work.options(delay="1h").start()
    soon = await work.options(delay=timedelta(milliseconds=30)).start()
    status = await later.status()
    assert status.public_state is PublicState.DELAYED
    async with running(app):
        assert await soon.result() == 1
        assert (await later.status()).public_state is PublicState.DELAYED
        assert await kinds(soon) == ["submitted", "promoted", "claimed", "completed"]


async def test_a_delay_until_an_instant_keeps_it_from_starting(app: App) -> None:
    @app.task
    async def work() -> int:
        return 1

    now = datetime.now(UTC).replace(microsecond=0)
    instant = now.astimezone(timezone(timedelta(hours=-3))) + timedelta(hours=1)
    later = await work.options(delay=instant).start()
    past = await work.options(delay=now - timedelta(hours=1)).start()
    assert (await later.status()).public_state is PublicState.DELAYED
    assert (await later.explain()).until_ms == instant.timestamp() * 1_000
    async with running(app):
        assert await past.result() == 1
        assert (await later.status()).public_state is PublicState.DELAYED


@pytest.mark.parametrize("kind", ["span", "datetime"])
async def test_a_deadline_is_kept_with_the_execution(app: App, kind: str) -> None:
    @app.task
    async def work() -> None: ...

    before = datetime.now(UTC)
    deadline = "1h" if kind == "span" else before + timedelta(hours=1)
    handle = await work.options(deadline=deadline).start()
    kept = (await handle.status()).deadline_ms
    expected_ms = int(before.timestamp() * 1_000) + 3_600_000
    assert kept is not None
    # A span counts from the start, which was a moment later.
    assert expected_ms - 1 <= kept <= expected_ms + 60_000


async def test_a_higher_priority_goes_first(url: str) -> None:
    app = App(url, concurrency=1)
    ran: list[str] = []

    @app.task(priority=5)
    async def note(name: str) -> None:
        ran.append(name)

    handles = await app.start_many(
        [
            note.bind("default"),
            note.options(priority=0).bind("low"),
            note.options(priority=9_000).bind("high"),
            note.options(priority=6).bind("above"),
        ]
    )
    async with running(app):
        for handle in handles:
            await handle.result()
    assert ran == ["high", "above", "default", "low"]


async def test_a_task_knows_its_lane_and_a_start_can_choose_another(app: App) -> None:
    @app.task(lane="slow lane")
    async def work() -> int:
        return 1

    own = await work.start()
    other = await work.options(lane="elsewhere").start()
    assert (await own.status()).lane == "slow lane"
    assert (await other.status()).lane == "elsewhere"
    async with running(app):
        assert await own.result() == 1
        assert (await other.status()).public_state is PublicState.WAITING
    async with running(app, lanes=("elsewhere",)):
        assert await other.result() == 1


async def test_starts_without_a_key_share_partitions_in_runs(app: App) -> None:
    @app.task
    async def work(n: int) -> None: ...

    handles = await app.start_many(work.bind(n) for n in range(300))
    partitions = {partition_of(parse_execution_id(handle.id)) for handle in handles}
    assert 3 <= len(partitions) <= 4


async def test_a_task_may_have_any_plain_parameter_name(app: App) -> None:
    @app.task
    async def odd(self: int, args: int, kwargs: int, name: str) -> list[object]:
        return [self, args, kwargs, name]

    async with running(app):
        handle = await odd.start(self=1, args=2, kwargs=3, name="x")
        assert await handle.result() == [1, 2, 3, "x"]


async def test_a_default_stays_with_the_function(app: App) -> None:
    @app.task
    async def greet(name: str = "nobody", seen: Point | None = None) -> str:
        return f"{name} {seen}"

    handle = await greet.start()
    assert (await app.engine.read.load(handle.id, payload=True)).payload == b"{}"
    async with running(app):
        assert await handle.result() == "nobody None"


async def test_a_task_can_start_another(app: App) -> None:
    @app.task
    async def inner(n: int) -> int:
        return n * 10

    @app.task
    async def outer(ctx: Context, n: int) -> int:
        handle = await inner.options(idempotency_key=ctx.id).start(n)
        return await handle.result() + 1

    async with running(app):
        assert await (await outer.start(2)).result() == 21


async def test_the_function_itself_can_be_called(app: App) -> None:
    @app.task(name="other-name")
    def double(n: int) -> int:
        return 2 * n

    assert double.function(4) == 8
    assert repr(double) == "Task('other-name')"
