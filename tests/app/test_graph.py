"""Graphs through the app: nodes, edges, data, choices, on every store with a real worker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import cast
from uuid import UUID, uuid5

import pytest

from flowfabric import App, Graph, Task
from flowfabric.client import pages
from flowfabric.core.states import PublicState
from flowfabric.errors import (
    ExecutionCancelled,
    ExecutionFailed,
    ExecutionSkipped,
    IdempotencyConflict,
    InvalidInput,
    TaskError,
)
from tests.app.stage import Gate, running


async def test_a_chain_passes_results_on(app: App) -> None:
    @app.task
    async def number(n: int) -> int:
        return n

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    g = app.graph("chain")
    node = g.add(number, 1)
    for _ in range(5):
        node = g.add(double, node)
    async with running(app):
        run = await g.submit()
        assert await run.result(node) == 32
        flow = await run.wait()
    assert flow.total == 6


async def test_a_diamond_joins_two_results_and_nested_places(app: App) -> None:
    @app.task
    async def number(n: int) -> int:
        return n

    @app.task
    async def total(parts: list[int], more: dict[str, int], again: int) -> int:
        return sum(parts) + more["x"] + again

    g = app.graph("diamond")
    a, b = g.add(number, 1), g.add(number, 20)
    # Nodes among plain values, or by keyword, are more than a type checker can follow.
    anyhow: Task[..., int] = total
    last = g.add(anyhow, [a, 300, b], {"x": b}, again=a)
    async with running(app):
        run = await g.submit()
        assert await run.result(last) == 1 + 300 + 20 + 20 + 1


async def test_any_of_passes_the_winner_and_cancels_the_rest(app: App) -> None:
    slow = Gate()

    @app.task
    async def quick() -> str:
        await slow.reached.wait()
        return "quick"

    @app.task
    async def stuck() -> str:
        await slow.wait()
        return "stuck"

    @app.task
    async def use(text: str) -> str:
        return f"used {text}"

    g = app.graph("race")
    loser, winner = g.add(stuck), g.add(quick)
    used = g.add(use, g.any_of(loser, winner))
    async with running(app):
        run = await g.submit()
        assert await run.result(used) == "used quick"
        with pytest.raises(ExecutionCancelled, match="sibling_quorum_satisfied"):
            await run.result(loser)
        await slow.cancelled.wait()


async def test_a_quorum_passes_its_successes_in_the_order_of_the_graph(app: App) -> None:
    @app.task
    async def number(n: int) -> int:
        if n < 0:
            raise ValueError("negative")
        return n

    @app.task
    async def total(parts: list[int]) -> list[int]:
        return parts

    g = app.graph("quorum")
    nodes = [g.add(number, n) for n in (-1, 3, 5)]
    last = g.add(total, g.quorum(2, *nodes))
    async with running(app):
        run = await g.submit()
        assert await run.result(last) == [3, 5]


async def test_a_failure_skips_what_needs_it_and_runs_what_cleans_up(app: App) -> None:
    @app.task
    async def fail() -> int:
        raise ValueError("no")

    @app.task
    async def need(n: int) -> int:
        return n

    @app.task
    async def clean() -> str:
        return "cleaned"

    g = app.graph("branches")
    broken = g.add(fail)
    needs = g.add(need, broken)
    cleaned = g.add(clean, after=[broken.failed])
    anyway = g.add(clean, after=[needs.ended])
    async with running(app):
        run = await g.submit()
        assert await run.result(cleaned) == "cleaned"
        assert await run.result(anyway) == "cleaned"
        with pytest.raises(ExecutionFailed):
            await run.result(broken)
        with pytest.raises(ExecutionSkipped):
            await run.result(needs)
        assert (await run.handle(needs).status()).public_state is PublicState.SKIPPED


@pytest.mark.case("PA-012")
async def test_a_graph_is_submitted_once_and_a_key_answers_the_same_flow(app: App) -> None:
    @app.task
    async def number(n: int) -> int:
        return n

    async with running(app):
        one, same = app.graph("keyed"), app.graph("keyed")
        first, other = one.add(number, 1), one.add(number, 2)
        second = same.add(number, 1)
        same.add(number, 2)
        run = await one.submit(idempotency_key="k")
        again = await same.submit(idempotency_key="k")
        assert run.id == again.id
        assert first.id == second.id == f"0-{uuid5(UUID(run.id), '0')}"
        assert other.id == f"0-{uuid5(UUID(run.id), '1')}"
        assert await again.result(second) == 1
        with pytest.raises(InvalidInput):
            await one.submit()


async def test_what_belongs_to_another_graph_is_refused(app: App) -> None:
    @app.task
    async def number(n: int) -> int:
        return n

    one, other = app.graph("one"), app.graph("other")
    node = one.add(number, 1)
    with pytest.raises(InvalidInput):
        other.add(number, node)
    with pytest.raises(InvalidInput):
        await other.submit()


async def test_a_key_means_one_graph_with_all_that_is_said_about_it(app: App) -> None:
    @app.task
    async def number(n: int) -> int:
        return n

    def race(*, let_run: bool = False, deadline: str = "1h", keep: str = "1d") -> Graph:
        g = app.graph("race", deadline=deadline, retention=keep)
        g.add(number, g.any_of(g.add(number, 1), g.add(number, 2), let_run=let_run))
        return g

    first = await race().submit(idempotency_key="one")
    again = await race().submit(idempotency_key="one")
    assert again.id == first.id
    for other in (race(let_run=True), race(deadline="2h"), race(keep="2d")):
        with pytest.raises(IdempotencyConflict):
            await other.submit(idempotency_key="one")


async def test_the_deadline_of_a_graph_may_be_an_instant(app: App) -> None:
    @app.task
    async def number(n: int) -> int:
        return n

    def until(moment: datetime) -> Graph:
        g = app.graph("timed", deadline=moment)
        g.add(number, 1)
        return g

    instant = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    first = await until(instant).submit(idempotency_key="one")
    assert (await first.status()).flow.deadline_ms == instant.timestamp() * 1_000
    # The same instant is the same graph, however near it has come.
    assert (await until(instant).submit(idempotency_key="one")).id == first.id
    with pytest.raises(IdempotencyConflict):
        await until(instant + timedelta(hours=1)).submit(idempotency_key="one")


@pytest.mark.parametrize("deadline", [timedelta(0), datetime(2020, 1, 1, tzinfo=UTC)])
async def test_a_graph_whose_time_is_over_is_not_made(
    app: App, deadline: datetime | timedelta
) -> None:
    @app.task
    async def number(n: int) -> int:
        return n

    g = app.graph("late", deadline=deadline)
    g.add(number, 1)
    with pytest.raises(InvalidInput, match="in the past") as refused:
        await g.submit()
    assert refused.value.field == "deadline"
    assert await app.flows() == []


@pytest.mark.parametrize("store_kind", ["memory"])
async def test_a_node_that_was_refused_leaves_nothing_in_the_graph(app: App) -> None:
    @app.task
    async def number(n: int) -> int:
        return n

    g, stranger = app.graph("whole"), app.graph("other").add(number, 1)
    first = g.add(number, 1)
    with pytest.raises(InvalidInput, match="is not in this graph"):
        g.add(number, first, after=[stranger])
    with pytest.raises(InvalidInput, match="with two kinds of edges"):
        g.add(number, first, after=[first.ended])
    run = await g.submit()
    assert (await run.status()).flow.edges == 0


async def test_arguments_of_the_wrong_type_are_found_where_they_are_made(app: App) -> None:
    @app.task
    async def number(n: int) -> int:
        return n

    with pytest.raises(InvalidInput):
        app.graph("bad").add(cast(Task[..., int], number), "one")


async def test_an_optional_result_is_none_when_there_is_none(app: App) -> None:
    @app.task
    async def number(n: int) -> int:
        if n < 0:
            raise ValueError("negative")
        return n

    @app.task
    async def both(first: int | None, second: int | None) -> list[int | None]:
        return [first, second]

    g = app.graph("optional")
    good, bad = g.add(number, 1), g.add(number, -1)
    last = g.add(both, good.optional, bad.optional)
    async with running(app):
        run = await g.submit()
        assert await run.result(last) == [1, None]


@pytest.mark.parametrize("store_kind", ["memory"])
async def test_only_what_may_have_a_result_can_be_an_argument(app: App) -> None:
    @app.task
    async def number(n: int) -> int:
        return n

    g = app.graph("wrong")
    node = g.add(number, 1)
    for condition in (node.ended, node.failed):
        with pytest.raises(InvalidInput, match="carry no result") as raised:
            g.add(cast(Task[..., int], number), condition)
        assert raised.value.field == "n"


async def test_who_waits_for_a_cancel_hears_who_was_cancelled(app: App) -> None:
    gate = Gate()

    @app.task
    async def stuck() -> str:
        await gate.wait()
        return "stuck"

    @app.task
    async def use(text: str) -> str:
        return text

    g = app.graph("stopped")
    first = g.add(stuck)
    then = g.add(use, first)
    async with running(app):
        run = await g.submit()
        await gate.reached.wait()
        done = await run.cancel("enough", wait="30s")
        assert (done.status, set(done.cancelled)) == ("cancelled", {first.id, then.id})
        await gate.cancelled.wait()
        flow = await run.wait()
        backlog = await run.backlog()
        assert (flow.state, backlog.owed, backlog.is_listed) == ("cancelled", [], False)
        status = await run.status()
        assert (status.state, status.summary.public_flow_state) == ("cancelled", "failed")
        with pytest.raises(ExecutionCancelled, match="enough"):
            await run.result(then)
        with pytest.raises(InvalidInput, match="unknown value"):
            await run.cancel(policy="everything")


async def test_flows_are_found_again_by_name_state_and_page(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    async def number(n: int) -> int:
        return n

    made: list[str] = []
    for name in ("etl", "etl", "other"):
        g = app.graph(name)
        g.add(number, len(made))
        made.append((await g.submit()).id)
    monkeypatch.setattr(pages, "PAGE", 1)
    assert [flow.id async for flow in app.flows(name="etl")] == sorted(made[:2])
    assert await app.flows(name="etl").count() == 2
    await app.flow_handle(made[0]).cancel()
    assert [flow.id for flow in await app.flows(state="cancelled")] == made[:1]
    assert {flow.id for flow in await app.flows(state="open")} == set(made[1:])
    assert await app.flows(namespace="elsewhere") == []
    with pytest.raises(InvalidInput, match="unknown value"):
        await app.flows(state="melted")
    again = app.flow_handle(made[1])
    (row,) = await again.members(states=["waiting"])
    assert (row.kind, (await again.status()).flow.name) == ("number", "etl")
    with pytest.raises(InvalidInput, match="unknown value"):
        await again.members(states=["melted"])
    with pytest.raises(InvalidInput):
        app.flow_handle("nonsense")
    async with running(app):
        assert (await again.wait()).completed == 1
        done = await again.status()
        assert (done.state, done.summary.members_completed) == ("completed", 1)


async def test_a_member_runs_again_with_what_depended_on_it(app: App) -> None:
    runs: list[str] = []

    @app.task
    async def flaky(name: str) -> str:
        runs.append(name)
        if len(runs) == 1:
            raise TaskError("not yet", fatal=True)
        return name

    g = app.graph("again")
    first = g.add(flaky, "first")
    then = g.add(flaky, first)
    async with running(app):
        run = await g.submit()
        assert (await run.wait()).skipped == 1
        assert (await run.status()).state == "failed"
        await run.replay(first, "it is there now", downstream=True)
        assert await run.result(then) == "first"
        flow = await run.wait()
    assert (flow.completed, flow.failed, flow.skipped) == (2, 0, 0)
