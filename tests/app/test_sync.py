"""`app.sync`: the verbs of an app for programs without an event loop."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import flowfabric as ff
from flowfabric.client.finding import Found
from flowfabric.client.sync_handles import (
    SyncFlowHandle,
    SyncFound,
    SyncHandle,
    SyncListing,
)
from flowfabric.errors import Refused
from tests.app.stage import PATIENCE_SECONDS


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[ff.App]:
    app = ff.App(f"sqlite:///{tmp_path / 'flows.db'}")
    yield app
    app.sync.close()


def test_a_script_starts_waits_and_looks(shop: ff.App) -> None:
    @shop.task(retries=1)
    def add(ctx: ff.Context, a: int, b: int) -> int:
        if ctx.attempt == 0:
            raise ConnectionError("the first try fails")
        return a + b

    with shop.sync.running():
        handle = shop.sync.start(add, 2, 3)
        assert handle.result(timeout="60s") == 5
        assert [each.outcome for each in handle.attempts()] == ["failed", "success"]
        assert handle.status().public_state is ff.PublicState.COMPLETED
        assert "completed" in handle.explain().sentence
        assert next(iter(handle.events())).kind == "submitted"
        assert [worker.tasks for worker in shop.sync.workers()] == [("add",)]
        many = shop.sync.start_many(add.bind(n, n) for n in range(3))
        assert [each.result() for each in many] == [0, 2, 4]
        again = shop.sync.handle(handle.id, add)
        assert again.result() == 5


def test_work_without_a_worker_waits_and_can_be_changed(shop: ff.App) -> None:
    @shop.task
    def add(a: int, b: int) -> int:
        return a + b

    handle = shop.sync.start(add.options(lane="sums"), 2, 3)
    assert shop.sync.find(task="add", state="waiting").count() == 1
    assert handle.pause("later") is ff.PublicState.WAITING
    assert "paused by an operator" in handle.explain().sentence
    assert handle.resume() is handle.resume() is ff.PublicState.WAITING
    handle.reprioritize(7)
    assert handle.status().priority == 7
    assert [(lane.name, lane.ready) for lane in shop.sync.lanes()] == [("sums", 1)]
    assert shop.sync.find(lane="sums").cancel() == 1
    assert handle.cancel() is ff.PublicState.CANCELLED
    assert handle.wait().public_state is ff.PublicState.CANCELLED
    assert shop.sync.find(state="cancelled").replay() == 1
    assert handle.cancel() is ff.PublicState.CANCELLED
    assert shop.sync.find(state="cancelled").purge() == 1
    assert list(shop.sync.find()) == []


def test_a_graph_is_submitted_and_its_members_are_there(shop: ff.App) -> None:
    @shop.task
    def number(n: int) -> int:
        return n

    g = shop.graph("sums")
    node = g.add(number.options(name="one"), 1)
    with shop.sync.running():
        run = shop.sync.submit(g)
        assert run.wait(timeout="60s").completed == 1
        assert run["one"].result() == run.result(node) == run.handle(node).result() == 1
        assert [each.member for each in run.members()] == ["one"]
        assert [flow.id for flow in shop.sync.flows(name="sums")] == [run.id]
        assert shop.sync.flow_handle(run.id).status().flow.name == "sums"


def test_many_threads_share_one_loop(shop: ff.App) -> None:
    @shop.task
    def double(n: int) -> int:
        return 2 * n

    found: list[int] = []

    def ask(n: int) -> None:
        found.append(shop.sync.start(double, n).result())

    with shop.sync.running():
        threads = [threading.Thread(target=ask, args=(n,)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        names = [thread.name for thread in threading.enumerate()]
    assert sorted(found) == [2 * n for n in range(20)]
    assert names.count("flowfabric-sync") == 1


def test_a_plain_task_starts_another(shop: ff.App) -> None:
    @shop.task
    def inner(n: int) -> int:
        return n + 1

    @shop.task
    def outer(n: int) -> int:
        return shop.sync.start(inner, n).result(timeout="60s")

    with shop.sync.running():
        assert shop.sync.start(outer, 1).result(timeout="60s") == 2


def test_a_forked_child_starts_a_loop_of_its_own(shop: ff.App) -> None:
    @shop.task
    def number(n: int) -> int:
        return n

    shop.sync.start(number, 1)
    child = os.fork()
    if child == 0:
        shop.sync.start(number, 2)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert shop.sync.find(task="number").count() == 2


async def test_a_call_that_would_block_its_own_worker_is_refused(tmp_path: Path) -> None:
    app = ff.App(f"sqlite:///{tmp_path / 'flows.db'}")

    @app.task
    async def number(n: int) -> int:
        return n

    handle = app.sync.start(number, 1)
    async with app.running():
        with pytest.raises(Refused, match="would block the event loop"):
            handle.result()
        assert await asyncio.to_thread(handle.result, "60s") == 1
    await asyncio.to_thread(app.sync.close)


def test_closing_leaves_an_app_that_runs_elsewhere_alone(shop: ff.App) -> None:
    @shop.task
    def number(n: int) -> int:
        return n

    async def main() -> int:
        async with shop.running():
            first = await asyncio.to_thread(shop.sync.start, number, 1)
            await asyncio.to_thread(shop.sync.close)
            return await shop.handle(first.id, number).result("60s")

    assert asyncio.run(main()) == 1


PAIRS: list[tuple[type, type]] = [
    (ff.App, type(ff.App("memory://").sync)),
    (ff.Handle, SyncHandle),
    (ff.FlowHandle, SyncFlowHandle),
    (ff.Listing, SyncListing),
    (Found, SyncFound),
]
# What is about definitions, or about the event loop of the caller.
ASYNC_ONLY: dict[type, set[str]] = {
    ff.App: {"task", "tasks", "graph", "sync", "connect", "health", "work"}
}
# `task.start` and `graph.submit` are verbs of what they start.
SYNC_ONLY = {"start", "submit"}


@pytest.mark.parametrize(("waits", "blocks"), PAIRS, ids=lambda kind: kind.__name__)
def test_names_and_parameters_are_the_same(waits: type, blocks: type) -> None:
    first = public(waits) - ASYNC_ONLY.get(waits, set())
    second = public(blocks) - SYNC_ONLY
    assert first == second
    for name in first:
        there, here = getattr(waits, name), getattr(blocks, name)
        if callable(there):
            assert parameters(there) == parameters(here), name


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def parameters(function: object) -> list[tuple[str, object, object]]:
    assert callable(function)
    found = inspect.signature(function).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]
