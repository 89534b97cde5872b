"""The commands of operators: what they print, what they change, and how they end."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

import flowfabric as ff
from flowfabric.settings import NAMESPACE_VARIABLE, STORE_VARIABLE
from tests.cli.command import ff as command

T = TypeVar("T")

MODULE = """
import flowfabric as ff

app = ff.App("sqlite:///flows.db")

@app.task
def add(a: int, b: int = 1) -> int:
    return a + b

@app.task
def broken(name: str) -> int:
    return {"a": 1}[name]
"""
UNKNOWN = "7-018f0c2e-7b1a-7c3d-8e4f-5a6b7c8d9e0f"


class Shop:
    """A store in the current folder, with work that no worker takes."""

    def __init__(self) -> None:
        self.app = ff.App("sqlite:///flows.db")

        @self.app.task
        def add(a: int, b: int = 1) -> int:
            return a + b

        @self.app.task
        def broken(ctx: ff.Context, name: str) -> int:
            ctx.log.warning("looking for %s", name)
            return {"a": 1}[name]

        self.add, self.broken = add, broken

    def run(self, work: Coroutine[None, None, T]) -> T:
        async def closing() -> T:
            try:
                return await work
            finally:
                await self.app.close()

        return asyncio.run(closing())

    def waiting(self, count: int) -> list[str]:
        async def start() -> list[str]:
            tagged = self.add.options(tags={"shop.tenant": "acme"})
            handles = await self.app.start_many(tagged.bind(n) for n in range(count))
            return sorted(handle.id for handle in handles)

        return self.run(start())

    def failed(self) -> str:
        async def fail() -> str:
            async with self.app.running():
                handle = await self.broken.start("b")
                await handle.wait()
            return handle.id

        return self.run(fail())

    def states(self) -> dict[str, str]:
        async def look() -> dict[str, str]:
            return {each.id: each.public_state async for each in self.app.find()}

        return self.run(look())


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.chdir(tmp_path)
    for name in (NAMESPACE_VARIABLE, "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(STORE_VARIABLE, "sqlite:///flows.db")
    (tmp_path / "operated_shop.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "operated_shop", raising=False)
    return Shop()


def told(*arguments: str) -> dict[str, Any]:
    """What a command answers a program."""
    done = command(*arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_ps_lists_what_has_not_ended_and_what_is_asked_for(shop: Shop) -> None:
    over, ids = shop.failed(), shop.waiting(3)
    table = command("ps").stdout
    assert all(id in table for id in ids)
    assert over not in table
    assert "waiting" in table
    assert over in command("ps", "--state", "failed").stdout
    page = told("ps", "--tag", "shop.tenant=acme", "--task", "add", "--limit", "2")
    assert page["total"] == 3
    assert isinstance(page["executions"], list)
    assert [each["kind"] for each in page["executions"]] == ["add", "add"]
    assert told("ps", "--lane", "elsewhere")["total"] == 0
    assert told("ps", "--since", "1h", "--state", "failed,waiting")["total"] == 4


def test_show_has_attempts_traceback_log_and_events(shop: Shop) -> None:
    id = shop.failed()
    shown = command("show", id).stdout
    for part in (id, "broken", "KeyError: 'b'", 'return {"a": 1}[name]', "looking for b"):
        assert part in shown
    assert [word for word in ("submitted", "claimed", "failed") if word not in shown] == []
    assert "{fp:" not in shown
    answer = told("show", id)
    assert answer.keys() >= {"execution", "explanation", "attempts", "events"}


def test_show_draws_a_flow_as_a_tree(shop: Shop) -> None:
    async def submit() -> str:
        g = shop.app.graph("sums")
        first = g.add(shop.add.options(name="first"), 1)
        second = g.add(shop.add.options(name="second"), 2)
        g.add(shop.add.options(name="total"), first, second)
        return (await g.submit()).id

    flow = shop.run(submit())
    shown = command("show", flow).stdout
    lines = [line for line in shown.splitlines() if "total" in line]
    assert any("waiting_children" in line and "also after second" in line for line in lines)
    assert "3: 2 waiting, 1 waiting_children" in shown
    assert told("ps", "--flow", flow)["total"] == 3
    assert command("cancel", flow).returncode == 0


def test_explain_says_why(shop: Shop) -> None:
    (id,) = shop.waiting(1)
    assert "no live worker serves" in command("explain", id).stdout
    assert told("explain", id)["public_state"] == "waiting"


@pytest.mark.parametrize("verb", ["show", "explain", "cancel", "replay", "pause", "tail", "purge"])
def test_what_is_not_there_is_said_with_its_own_exit_code(shop: Shop, verb: str) -> None:
    shop.waiting(1)
    done = command(verb, UNKNOWN)
    assert done.returncode == 3
    assert UNKNOWN in done.stderr


def test_a_store_that_is_not_there_is_not_made(shop: Shop, tmp_path: Path) -> None:
    assert command("ps").returncode != 0
    assert not (tmp_path / "flows.db").exists()


def test_ids_are_changed_at_once(shop: Shop) -> None:
    first, second = shop.waiting(2)
    assert command("cancel", first, second, "--reason", "wrong").stdout == "2 changed\n"
    assert set(shop.states().values()) == {"cancelled"}
    assert command("replay", first).stdout == "1 changed\n"
    assert shop.states() == {first: "waiting", second: "cancelled"}
    assert command("purge", second).stdout == "1 changed\n"
    assert list(shop.states()) == [first]
    refused = command("purge", first)
    assert refused.returncode == 4
    assert "is waiting" in refused.stderr


def test_what_is_only_described_must_be_confirmed(shop: Shop) -> None:
    shop.waiting(3)
    asked = command("cancel", "--task", "add")
    assert asked.returncode == 2
    assert "pass --yes to confirm" in asked.stderr
    counted = command("cancel", "--task", "add", "--dry-run")
    assert (counted.returncode, counted.stderr) == (
        0,
        "3 executions match; nothing was changed\n",
    )
    assert set(shop.states().values()) == {"waiting"}
    assert told("cancel", "--task", "add", "--yes") == {"changed": 3, "refused": {}}
    assert command("replay", "--state", "cancelled", "--yes").stdout == "3 changed\n"
    assert command("cancel", "--tag", "shop.tenant=acme", "--yes").stdout == "3 changed\n"
    assert command("purge", "--state", "cancelled", "--yes").stdout == "3 changed\n"
    assert shop.states() == {}


@pytest.mark.parametrize("verb", ["cancel", "replay", "purge"])
def test_ids_and_conditions_exclude_each_other(shop: Shop, verb: str) -> None:
    (id,) = shop.waiting(1)
    assert command(verb).returncode == 2
    assert command(verb, id, "--task", "add").returncode == 2
    assert shop.states() == {id: "waiting"}


def test_work_and_lanes_are_paused_and_resumed(shop: Shop) -> None:
    (id,) = shop.waiting(1)
    assert command("pause", id, "--reason", "ask first").stdout == f"{id} is waiting, paused\n"
    assert "paused by an operator" in command("explain", id).stdout
    assert command("resume", id).stdout == f"{id} is waiting\n"
    assert command("pause", "--lane", "default").stdout == "lane default is paused\n"
    (lane,) = told("lanes")["lanes"]
    assert (lane["name"], lane["state"], lane["ready"]) == ("default", "paused", 1)
    assert command("resume", "--lane", "default").stdout == "lane default is active\n"
    assert "active" in command("lanes").stdout
    assert command("pause").returncode == 2


def test_tail_shows_what_happened(shop: Shop) -> None:
    id = shop.failed()
    lines = command("tail", id).stdout.splitlines()
    assert [line.split()[3] for line in lines] == ["submitted", "claimed", "failed"]
    assert all(id in line for line in lines)
    everything = command("tail", "--past", "--json").stdout.splitlines()
    assert [json.loads(line)["kind"] for line in everything] == ["submitted", "claimed", "failed"]


@pytest.mark.parametrize(
    ("arguments", "result"), [("[1, 2]", "3"), ('{"a": 5}', "6"), ('{"a": 5, "b": 5}', "10")]
)
def test_run_prints_the_result_of_a_task(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, arguments: str, result: str
) -> None:
    monkeypatch.syspath_prepend(str(Path.cwd()))
    done = command("run", "operated_shop:app", "add", arguments)
    assert (done.returncode, done.stdout.strip()) == (0, result)
    assert "no live worker serves it" in done.stderr


def test_run_says_what_is_wrong(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path.cwd()))
    target = ("run", "operated_shop:app")
    unknown = command(*target, "ad")
    assert unknown.returncode == 2
    assert "known tasks: add, broken" in unknown.stderr
    assert command(*target, "add", "{").returncode == 2
    assert command(*target, "add", "5").returncode == 2
    assert command(*target, "add", '["x"]').returncode == 2
    failed = command(*target, "broken", '["b"]')
    assert failed.returncode == 8
    assert "KeyError: 'b'" in failed.stderr
    detached = command(*target, "add", "[1]", "--detach", "--key", "once")
    again = command(*target, "add", "[1]", "--detach", "--key", "once")
    assert detached.stdout == again.stdout
    assert shop.states()[detached.stdout.strip()] == "waiting"
