"""Members with names: found again by them in any process, and seen by people."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
import pytest

from flowfabric import (
    App,
    ExecutionFailed,
    ExecutionNotFound,
    FlowHandle,
    Handle,
    IdempotencyConflict,
    InvalidInput,
    PublicState,
)
from flowfabric.client.member_handle import MemberHandle
from flowfabric.core.flow.member_names import TAG
from flowfabric.core.ids import ExecutionId
from flowfabric.worker import named_log
from tests.app.stage import Gate, running

on_memory = pytest.mark.parametrize("store_kind", ["memory"])


class Total(msgspec.Struct, frozen=True):
    value: int


class Sums:
    """An app and its tasks, as each process of a program makes them."""

    def __init__(self, app: App) -> None:
        @app.task
        async def number(n: int) -> int:
            if n < 0:
                raise ValueError("negative")
            return n

        @app.task
        async def total(parts: list[int]) -> Total:
            return Total(sum(parts))

        self.app, self.number, self.total = app, number, total

    async def submit(self, *, key: str | None = None, last: str = "total") -> FlowHandle:
        g = self.app.graph("sums")
        left = g.add(self.number.options(name="left"), 1)
        g.add(self.total.options(name=last, priority=5), [left, g.add(self.number, 2)])
        return await g.submit(idempotency_key=key)


@pytest.mark.parametrize("key", [None, "sums-1"])
async def test_a_member_is_found_by_its_name_in_any_process(url: str, key: str | None) -> None:
    first = Sums(App(url))
    other = App(store=first.app.engine.store) if url == "memory://" else App(url)
    async with running(first.app):
        run = await first.submit(key=key)
        assert await run["total"].result() == Total(3)
        elsewhere = other.flow_handle(run.id)
        assert await elsewhere["left"].result() == 1
        # The task is not known there: plain JSON.
        assert await elsewhere["total"].result() == {"value": 3}
        assert elsewhere["total"].id == run["total"].id
        assert repr(elsewhere["left"]) == f"Handle({run['left'].id!r}, name='left')"
        status = await elsewhere["total"].status()
        assert (status.member, status.tags, status.priority) == ("total", {TAG: "total"}, 5)
    await other.close()


async def test_a_member_that_is_not_there_is_named(app: App) -> None:
    run = await Sums(app).submit()
    for name in ("nope", "number-2", "0", "2"):
        with pytest.raises(ExecutionNotFound) as missing:
            await run[name].result()
        assert missing.value.message == f"flow {run.id} has no member {name!r}"
        assert missing.value.details["member"] == name
        assert "options(name=...)" in missing.value.hint


@on_memory
async def test_every_verb_names_the_member_that_is_not_there(app: App) -> None:
    run = await Sums(app).submit()
    verbs = [
        name
        for name, _ in inspect.getmembers(Handle, inspect.iscoroutinefunction)
        if not name.startswith("_")
    ]
    assert len(verbs) >= 6
    for name in verbs:
        with pytest.raises(ExecutionNotFound, match="has no member 'nope'"):
            await getattr(run["nope"], name)(*([5] if name == "reprioritize" else []))
    for name in ("attempts", "events"):
        with pytest.raises(ExecutionNotFound, match="has no member 'nope'"):
            await getattr(run["nope"], name)()
    assert isinstance(run["nope"], MemberHandle)
    for no_name in (5, "", "a b"):
        with pytest.raises(InvalidInput) as refused:
            run[cast(Any, no_name)]
        assert refused.value.field == "name"


@on_memory
async def test_names_are_unique_in_a_graph(app: App) -> None:
    sums = Sums(app)
    g, other = app.graph("sums"), app.graph("others")
    g.add(sums.number.options(name="left"), 1)
    with pytest.raises(InvalidInput, match="graph 'sums' already has a member 'left'") as refused:
        g.add(sums.number.options(name="left"), 2)
    assert refused.value.field == "name"
    assert repr(g.add(sums.number, 2)) == "Node('number-1')"
    assert repr(other.add(sums.number.options(name="left"), 2)) == "Node('left')"
    first, second = await g.submit(), await other.submit()
    assert first["left"].id != second["left"].id
    assert [(each.id, each.member) for each in await second.members()] == [
        (second["left"].id, "left")
    ]


@on_memory
async def test_a_name_is_no_place(app: App) -> None:
    """In a keyed flow ids follow from names, or from places."""
    sums = Sums(app)
    g = app.graph("sums")
    named = g.add(sums.number.options(name="1"), 10)
    placed = g.add(sums.number, 20)
    run = await g.submit(idempotency_key="k")
    assert run["1"].id == named.id != placed.id
    assert (await run.status()).flow.total == 2


@on_memory
async def test_a_parameter_called_after_is_an_argument(app: App) -> None:
    @app.task
    async def follow(after: int) -> int:
        return after + 1

    g = app.graph("sums")
    last = g.add(follow, after=5)
    async with running(app):
        assert await (await g.submit()).result(last) == 6


@on_memory
async def test_a_member_has_no_key_of_its_own(app: App) -> None:
    keyed = Sums(app).number.options(idempotency_key="k")
    with pytest.raises(InvalidInput, match="no key of its own") as refused:
        app.graph("sums").add(keyed, 1)
    assert refused.value.field == "idempotency_key"
    assert "submit(idempotency_key=...)" in refused.value.hint


@on_memory
async def test_names_belong_to_what_a_key_stands_for(app: App) -> None:
    sums = Sums(app)
    run = await sums.submit(key="k")
    assert (await sums.submit(key="k")).id == run.id
    with pytest.raises(IdempotencyConflict):
        await sums.submit(key="k", last="sum")
    g = app.graph("sums")
    left = g.add(sums.number, 1)
    g.add(sums.total.options(priority=5), [left, g.add(sums.number, 2)])
    with pytest.raises(IdempotencyConflict):
        await g.submit(idempotency_key="k")


async def test_members_have_the_options_of_their_tasks(app: App) -> None:
    sums = Sums(app)
    g = app.graph("sums")
    late = sums.number.options(delay="1h", lane="slow", tags={"demo.tenant": "acme"})
    node = g.add(late, 1)
    g.add(sums.number.options(deadline="2h", name="last"), node)
    run = await g.submit()
    status = await run.handle(node).status()
    assert (status.public_state, status.lane) == (PublicState.DELAYED, "slow")
    assert (status.tags, status.member) == ({"demo.tenant": "acme"}, "")
    assert (await run["last"].status()).deadline_ms is not None


@on_memory
async def test_an_instant_of_a_member_means_itself_also_when_it_has_passed(app: App) -> None:
    sums = Sums(app)
    begin = datetime.now(UTC)

    async def submit(delay: datetime, deadline: datetime) -> FlowHandle:
        g = app.graph("sums")
        g.add(sums.number.options(delay=delay, deadline=deadline, name="only"), 1)
        return await g.submit(idempotency_key="k")

    delay, deadline = begin + timedelta(milliseconds=1), begin + timedelta(hours=1)
    run = await submit(delay, deadline)
    while datetime.now(UTC) <= delay:
        await app.engine.read.describe(run["only"].id)
    assert (await submit(delay, deadline)).id == run.id
    with pytest.raises(IdempotencyConflict):
        await submit(delay, deadline + timedelta(seconds=1))
    g = app.graph("sums")
    g.add(sums.number.options(deadline=begin - timedelta(hours=1)), 1)
    with pytest.raises(InvalidInput, match="is in the past"):
        await g.submit()


async def test_people_see_names(app: App) -> None:
    gate = Gate()
    sums = Sums(app)

    @app.task
    async def wait() -> int:
        await gate.wait()
        return 1

    g = app.graph("sums")
    held = g.add(wait.options(name="gate"))
    left = g.add(sums.number.options(name="left"), held)
    g.add(sums.total.options(name="total"), [left, g.add(sums.number, 2)])
    async with running(app):
        run = await g.submit()
        await gate.reached.wait()
        named = {each.id: each.member for each in await run.members() if each.member}
        assert sorted(named.values()) == ["gate", "left", "total"]
        assert named[left.id] == "left"
        explained = await run["left"].explain()
        assert explained.member == "left"
        assert explained.sentence.endswith("executions it depends on, among them 'gate'")
        gate.opened.set()
        assert await run["total"].result() == Total(3)


async def test_the_log_of_a_worker_names_members_that_fail(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    sums = Sums(app)
    g = app.graph("sums")
    g.add(sums.number.options(name="left"), -1)
    unnamed = g.add(sums.number, -2)
    with caplog.at_level(logging.ERROR, "flowfabric.worker"):
        async with running(app):
            run = await g.submit()
            for handle in (run["left"], run.handle(unnamed)):
                with pytest.raises(ExecutionFailed):
                    await handle.result()
    told = {record.getMessage().partition(":")[0]: record for record in caplog.records}
    assert sorted(told) == ["task number (member 'left') failed", "task number failed"]
    named = told["task number (member 'left') failed"]
    assert named.__dict__["member"] == "left"
    assert named.exc_info is not None


@on_memory
async def test_a_failure_is_logged_also_when_the_worker_stops_meanwhile(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(members: Iterable[ExecutionId]) -> dict[str, str]:
        await asyncio.Event().wait()
        return {}

    monkeypatch.setattr(named_log, "CLOSE_SECONDS", 0.01)
    monkeypatch.setattr(app.engine.read, "member_names", silent)
    g = app.graph("sums")
    g.add(Sums(app).number.options(name="left"), -1)
    with caplog.at_level(logging.ERROR, "flowfabric.worker"):
        async with running(app):
            run = await g.submit()
            with pytest.raises(ExecutionFailed):
                await run["left"].result()
    assert [message.partition(":")[0] for message in caplog.messages] == ["task number failed"]
