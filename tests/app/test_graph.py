"""Graphs through the app: nodes, edges, data, choices, on every store with a real worker."""

from __future__ import annotations

import pytest

from flowfabric import App
from flowfabric.core.states import PublicState
from flowfabric.errors import ExecutionCancelled, ExecutionFailed, ExecutionSkipped, InvalidInput
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
    last = g.add(total, [a, 300, b], {"x": b}, again=a)
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


async def test_a_graph_is_submitted_once_and_a_key_answers_the_same_flow(app: App) -> None:
    @app.task
    async def number(n: int) -> int:
        return n

    async with running(app):
        one, same = app.graph("keyed"), app.graph("keyed")
        first = one.add(number, 1)
        second = same.add(number, 1)
        run = await one.submit(idempotency_key="k")
        again = await same.submit(idempotency_key="k")
        assert run.id == again.id
        assert first.id == second.id
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


async def test_arguments_of_the_wrong_type_are_found_where_they_are_made(app: App) -> None:
    @app.task
    async def number(n: int) -> int:
        return n

    with pytest.raises(InvalidInput):
        app.graph("bad").add(number, "one")
