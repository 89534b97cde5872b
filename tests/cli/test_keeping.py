"""`ff sweep`, `ff doctor` and `ff workers` as people type them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path

from flowfabric import App
from flowfabric.core.ids import public_id
from flowfabric.core.model import Writer
from flowfabric.core.transition import Seen, Transition
from flowfabric.testing.build import order
from flowfabric.testing.invariants import broken_promises
from flowfabric.worker.heartbeat import Heartbeat
from tests.cli.command import ff


async def leave_something(url: str) -> None:
    """An execution whose pause is over, and nobody who served it."""
    app = App(url)
    await app.connect()
    engine = app.engine
    now_ms = engine.clock.now_ms()
    await engine.submit([order(0, delay_until_ms=now_ms + 100)])
    async with asyncio.timeout(30):
        while engine.clock.now_ms() <= now_ms + 100:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert await broken_promises(engine.store, engine.clock.now_ms()) == []
    await app.close()


def test_a_sweep_prints_what_it_repaired_and_the_doctor_is_content(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/flows.db"
    asyncio.run(leave_something(url))
    swept = ff("sweep", "--store", url, "--json")
    assert swept.returncode == 0, swept.stderr
    duties = {each["name"]: each["processed"] for each in json.loads(swept.stdout)["duties"]}
    assert duties["delayed_promoter"] == 1
    told = ff("doctor", "--store", url, "--json")
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert (found["is_well"], found["executions"], found["findings"]) == (True, 1, [])
    assert "all is well" in ff("doctor", "--store", url).stdout


def test_the_doctor_leaves_with_an_error_when_something_is_wrong(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/flows.db"
    asyncio.run(leave_something(url))
    asyncio.run(lose_the_timer(url))
    told = ff("doctor", "--store", url, "--json")
    assert told.returncode == 1
    (finding,) = json.loads(told.stdout)["findings"]
    assert (finding["kind"], finding["subject"]) == ("stuck", public_id(order(0).id))


def test_a_sweep_goes_on_when_a_duty_fails(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/flows.db"
    asyncio.run(leave_something(url))
    with contextlib.closing(sqlite3.connect(tmp_path / "flows.db")) as raw:
        raw.execute("DROP INDEX execution_purge")
    swept = ff("sweep", "--store", url, "--json")
    assert swept.returncode == 1, swept.stderr
    duties = {each["name"]: each for each in json.loads(swept.stdout)["duties"]}
    assert duties["delayed_promoter"]["processed"] == 1
    assert duties["retention_trimmer"]["errors"] == 1
    told = ff("doctor", "--store", url, "--deep")
    assert told.returncode in (0, 1), told.stderr


def test_the_doctor_counts_problems(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/flows.db"
    asyncio.run(leave_something(url))
    asyncio.run(lose_the_timer(url))
    told = ff("doctor", "--store", url)
    assert told.stdout.splitlines()[-1] == "1 problem"


async def lose_the_timer(url: str) -> None:
    """As a raw client could."""
    app = App(url)
    await app.connect()
    head = (await app.engine.read.load(order(0).id)).head
    change = Transition(head.id, Seen(head.rev, head.state), Writer.ENGINE, {"due_ms": None})
    await app.engine.store.apply([change], app.engine.clock.now_ms())
    await app.close()


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    for command in ("sweep", "doctor"):
        ran = ff(command, "--store", f"sqlite:///{tmp_path}/typo.db")
        assert ran.returncode == 4
        assert "ff db migrate" in ran.stderr
    assert list(tmp_path.iterdir()) == []


async def register(url: str) -> None:
    """A worker that was killed at once: it says that it lives, and never that it does not."""
    app = App(url)
    await app.connect()
    beating = Heartbeat(app.engine, "one", lanes=["mail"], tasks=["greet"], slots=5, busy=lambda: 2)
    await beating.beat()
    await app.close()


def test_workers_are_listed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/flows.db"
    asyncio.run(register(url))
    listed = ff("workers", "--store", url, "--json")
    assert listed.returncode == 0, listed.stderr
    (worker,) = json.loads(listed.stdout)["workers"]
    assert (worker["name"], worker["lanes"], worker["busy"]) == ("one", ["mail"], 2)
    shown = ff("workers", "--store", url).stdout
    assert "one" in shown
    assert "2 of 5" in shown
    others = ff("workers", "--store", url, "--namespace", "other", "--json")
    assert json.loads(others.stdout) == {"workers": []}
