"""Mistakes in a graph are typed errors at the line that makes them, with the field and the fix."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from flowfabric import App, Graph
from flowfabric.errors import InvalidInput
from tests.app.stage import running

pytestmark = pytest.mark.parametrize("store_kind", ["memory"])


class Bench:
    """A graph with two nodes, and everything a caller may confuse with them."""

    def __init__(self, app: App) -> None:
        @app.task
        async def number(n: int) -> int:
            return n

        @app.task
        async def total(parts: list[int]) -> int:
            return sum(parts)

        self.app = app
        # Callers without a type checker may pass anything.
        self.number: Any = number
        self.total: Any = total
        self.g: Any = app.graph("mistakes")
        self.a, self.b = self.g.add(number, 1), self.g.add(number, 2)
        self.stranger: Any = app.graph("other").add(number, 3)


@pytest.fixture
def bench(app: App) -> Bench:
    return Bench(app)


MISTAKES: dict[str, tuple[Callable[[Bench], object], str, str]] = {
    "quorum of a fraction": (lambda t: t.g.quorum(1.5, t.a, t.b), "k", "at most 2"),
    "quorum of 2.0": (lambda t: t.g.quorum(2.0, t.a, t.b), "k", "at most 2"),
    "quorum of a text": (lambda t: t.g.quorum("2", t.a, t.b), "k", "at most 2"),
    "quorum of a bool": (lambda t: t.g.quorum(True, t.a, t.b), "k", "at most 2"),
    "quorum of a node": (lambda t: t.g.quorum(t.a, t.b), "k", "at most 1"),
    "quorum of none": (lambda t: t.g.quorum(0, t.a, t.b), "k", "at least 1"),
    "quorum of more than there are": (lambda t: t.g.quorum(3, t.a, t.b), "k", "at most 2"),
    "quorum of one said twice": (lambda t: t.g.quorum(2, t.a, t.a), "k", "at most 1"),
    "a choice of nothing": (lambda t: t.g.any_of(), "nodes", "at least one node"),
    "a choice of an empty list": (lambda t: t.g.any_of([]), "nodes", "at least one node"),
    "a choice of tasks": (lambda t: t.g.any_of(t.number), "nodes", "`add` returned"),
    "a choice of names": (lambda t: t.g.any_of("ab"), "nodes", "`add` returned"),
    "a choice of lists": (lambda t: t.g.any_of([t.a], [t.b]), "nodes", "`add` returned"),
    "a choice of failures": (lambda t: t.g.any_of(t.a.failed, t.b), "nodes", "success"),
    "a choice of choices": (lambda t: t.g.any_of(t.g.any_of(t.a), t.b), "nodes", "success"),
    "a choice of a stranger": (lambda t: t.g.any_of(t.a, t.stranger), "after", "this graph"),
    "let_run as a text": (lambda t: t.g.any_of(t.a, let_run="yes"), "let_run", "True"),
    "let_run as a node": (lambda t: t.g.any_of(t.a, let_run=t.b), "let_run", "True"),
    "a function": (lambda t: t.g.add(lambda: 1), "task", "@app.task"),
    "a task's own function": (lambda t: t.g.add(t.number.function, 1), "task", "@app.task"),
    "a name": (lambda t: t.g.add("number", 1), "task", "@app.task"),
    "a node as a task": (lambda t: t.g.add(t.a), "task", "@app.task"),
    "no task": (lambda t: t.g.add(None), "task", "@app.task"),
    "after a name": (lambda t: t.g.add(t.number, 1, after="a"), "after", "`add` returned"),
    "after nothing": (lambda t: t.g.add(t.number, 1, after=None), "after", "`add` returned"),
    "after a number": (lambda t: t.g.add(t.number, 1, after=3), "after", "`add` returned"),
    "after a task": (lambda t: t.g.add(t.number, 1, after=[t.number]), "after", "`add` returned"),
    "after a stranger": (lambda t: t.g.add(t.number, 1, after=t.stranger), "after", "this graph"),
    "after a stranger's end": (
        lambda t: t.g.add(t.number, 1, after=[t.stranger.ended]),
        "after",
        "this graph",
    ),
    "a stranger as an argument": (lambda t: t.g.add(t.number, t.stranger), "after", "this graph"),
    "a failure as an argument": (lambda t: t.g.add(t.number, t.a.failed), "n", "`after`"),
    "a graph without a name": (lambda t: t.app.graph(None), "name", "bytes of text"),  # type: ignore[arg-type]
    "a deadline without a zone": (
        lambda t: t.app.graph("x", deadline=datetime(2030, 1, 1)),  # noqa: DTZ001
        "deadline",
        "tzinfo=UTC",
    ),
    "a deadline that is none": (lambda t: t.app.graph("x", deadline=True), "deadline", "30s"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_mistake_names_its_field_and_its_fix(bench: Bench, mistake: str) -> None:
    make, field, hint = MISTAKES[mistake]
    with pytest.raises(InvalidInput) as refused:
        make(bench)
    assert refused.value.field == field
    assert hint in refused.value.hint
    run = await bench.g.submit()
    assert (await run.status()).flow.total == 2


@pytest.mark.parametrize("way", ["itself", "inside", "chosen", "optional"])
async def test_a_result_that_needs_an_annotation_is_not_passed_to_who_has_none(
    app: App, bench: Bench, way: str
) -> None:
    @app.task
    async def words() -> set[str]:
        return {"a"}

    @app.task
    async def rows() -> list[dict[str, float | None]]:
        return []

    @app.task
    async def take(value: Any) -> None: ...

    @app.task
    async def count(words: set[str]) -> int:
        return len(words)

    g = bench.g
    ways: dict[str, Callable[[Any], object]] = {
        "itself": lambda node: node,
        "inside": lambda node: {"all": [bench.a, node]},
        "chosen": g.any_of,
        "optional": lambda node: node.optional,
    }
    g.add(take, ways[way](g.add(rows)))
    found = g.add(words)
    g.add(count, found)
    with pytest.raises(InvalidInput, match=r"passes set\[str\]") as refused:
        g.add(take, ways[way](found))
    assert refused.value.field == "value"
    assert "annotate the parameter" in refused.value.hint


async def test_a_choice_and_after_take_one_or_a_list(bench: Bench) -> None:
    g: Graph = bench.g
    first = g.add(bench.number, g.any_of([bench.a, bench.b], let_run=True))
    both = g.add(bench.total, g.quorum(2, iter([bench.a, bench.b])))
    alone = g.add(bench.number, 5, after=bench.a.ended)
    g.add(bench.number, 6, after=bench.a.failed)
    async with running(bench.app):
        run = await g.submit()
        assert await run.result(first) in (1, 2)
        assert await run.result(both) == 3
        assert await run.result(alone) == 5
        assert (await run.wait()).skipped == 1


async def test_a_submitted_graph_takes_no_more_nodes(bench: Bench) -> None:
    await bench.g.submit()
    with pytest.raises(InvalidInput, match="was already submitted") as refused:
        bench.g.add(bench.number, 4)
    assert refused.value.field == "graph"
