"""One clock for all processes of a file, whatever the clock of the machine shows them."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowfabric.core.states import State
from flowfabric.engine.engine import Engine
from flowfabric.engine.timekeeper import Timekeeper
from flowfabric.store.clock import JUMP_MS, SLEW, Machine
from flowfabric.store.sqlite import SqliteStore
from flowfabric.store.sqlite.clock import KEEP_MS, TEND_MS, this_machine
from flowfabric.testing.build import KIND, LANE, TTL_MS, order

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000


class Clocks:
    """The clocks of one machine; each process sees its wall clock with a difference of its own."""

    def __init__(self) -> None:
        self.boot = "first"
        self.steady_ms = 5_000_000
        self.wall_ms = START_MS

    def pass_ms(self, ms: int) -> None:
        self.steady_ms += ms
        self.wall_ms += ms

    def start_again(self, *, after_ms: int) -> None:
        self.boot += " again"
        self.steady_ms = 10_000
        self.wall_ms += after_ms

    def seen(self, off_ms: int = 0) -> Machine:
        return Machine(
            self.boot,
            lambda: (self.wall_ms + off_ms) * 1_000_000,
            lambda: self.steady_ms * 1_000_000,
        )


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
async def opened(clocks: Clocks, tmp_path: Path) -> AsyncIterator[list[Engine]]:
    engines: list[Engine] = []
    yield engines
    for engine in engines:
        await engine.close()


async def begin(clocks: Clocks, tmp_path: Path, opened: list[Engine], *, off_ms: int = 0) -> Engine:
    """An engine as in a process of its own, whose wall clock is off by so much."""
    store = SqliteStore(str(tmp_path / "flows.db"), machine=clocks.seen(off_ms))
    engine = Engine(store)
    await engine.open()
    opened.append(engine)
    return engine


async def times(*engines: Engine) -> list[int]:
    return [await engine.store.now() for engine in engines]


@pytest.mark.parametrize("off_ms", [-HOUR_MS, HOUR_MS])
async def test_processes_with_different_clocks_agree(
    clocks: Clocks, tmp_path: Path, opened: list[Engine], off_ms: int
) -> None:
    first = await begin(clocks, tmp_path, opened)
    second = await begin(clocks, tmp_path, opened, off_ms=off_ms)
    assert await times(first, second) == [START_MS, START_MS]
    assert first.clock.now_ms() == second.clock.now_ms() == START_MS
    for number in range(20):
        clocks.pass_ms(TEND_MS)
        await (first if number % 2 else second).submit([order(number)])
        here, there = await times(first, second)
        assert abs(here - there) <= 2 * TEND_MS // SLEW
        assert abs(here - clocks.wall_ms) <= 20 * TEND_MS // SLEW


@pytest.mark.parametrize("off_ms", [-HOUR_MS, HOUR_MS])
async def test_what_was_asked_before_the_file_was_open_holds_no_clock_back(
    clocks: Clocks, tmp_path: Path, opened: list[Engine], off_ms: int
) -> None:
    first = await begin(clocks, tmp_path, opened)
    second = Engine(SqliteStore(str(tmp_path / "flows.db"), machine=clocks.seen(off_ms)))
    opened.append(second)
    assert second.clock.now_ms() == START_MS + off_ms
    await second.open()
    clocks.pass_ms(1)
    assert await times(first, second) == [START_MS + 1, START_MS + 1]
    assert second.clock.now_ms() == START_MS + 1


async def test_a_lease_of_a_process_that_was_an_hour_ahead_ends_in_time(
    clocks: Clocks, tmp_path: Path, opened: list[Engine]
) -> None:
    first = await begin(clocks, tmp_path, opened)
    ahead = await begin(clocks, tmp_path, opened, off_ms=HOUR_MS)
    await ahead.submit([order(0)])
    (lease,) = await ahead.claim([LANE], 1, tasks=[KIND], worker="w", token="t", ttl_ms=TTL_MS)
    assert lease.until_ms == START_MS + TTL_MS
    clocks.pass_ms(TTL_MS + TTL_MS // SLEW)
    await Timekeeper(first.store, first.clock).run_once()
    assert (await first.read.load(lease.id)).head.state is State.ORPHANED


async def test_a_process_whose_clock_was_set_back_takes_over_no_live_lease(
    clocks: Clocks, tmp_path: Path, opened: list[Engine]
) -> None:
    behind = await begin(clocks, tmp_path, opened, off_ms=-HOUR_MS)
    first = await begin(clocks, tmp_path, opened)
    await behind.submit([order(0)])
    (lease,) = await behind.claim([LANE], 1, tasks=[KIND], worker="w", token="t", ttl_ms=TTL_MS)
    clocks.pass_ms(TTL_MS // 2)
    await Timekeeper(first.store, first.clock).run_once()
    assert (await first.read.load(lease.id)).head.state is State.ACTIVE
    renewed = await behind.renew([lease], TTL_MS)
    assert [each.error for each in renewed] == [None]


@pytest.mark.parametrize("set_ms", [-HOUR_MS, HOUR_MS])
async def test_a_jump_of_the_wall_clock_is_slewed(
    clocks: Clocks, tmp_path: Path, opened: list[Engine], set_ms: int
) -> None:
    engine = await begin(clocks, tmp_path, opened)
    clocks.wall_ms += set_ms
    clocks.pass_ms(TEND_MS)
    await engine.submit([order(0)])
    (before_ms,) = await times(engine)
    assert abs(before_ms - START_MS - TEND_MS) <= TEND_MS // SLEW
    clocks.pass_ms(10_000)
    (after_ms,) = await times(engine)
    assert after_ms - before_ms == (11_000 if set_ms > 0 else 9_000)
    assert engine.clock.now_ms() == after_ms
    clocks.pass_ms((SLEW + 1) * HOUR_MS)
    assert await times(engine) == [clocks.wall_ms]


async def test_a_process_that_only_watches_hears_of_a_jump_from_another(
    clocks: Clocks, tmp_path: Path, opened: list[Engine]
) -> None:
    writes = await begin(clocks, tmp_path, opened)
    watches = await begin(clocks, tmp_path, opened)
    heard = asyncio.Event()
    watches.hints.subscribe(lambda hint: heard.set() if hint.foreign else None)
    clocks.wall_ms += HOUR_MS
    clocks.pass_ms(TEND_MS)
    await writes.submit([order(0)])
    async with asyncio.timeout(30):
        await heard.wait()
    clocks.pass_ms(60_000)
    here, there = await times(writes, watches)
    assert here == there
    assert here > START_MS + 60_000 + TEND_MS


async def test_a_small_difference_is_no_jump(
    clocks: Clocks, tmp_path: Path, opened: list[Engine]
) -> None:
    engine = await begin(clocks, tmp_path, opened)
    clocks.wall_ms += JUMP_MS
    clocks.pass_ms(TEND_MS)
    await engine.submit([order(0)])
    assert await times(engine) == [START_MS + TEND_MS]


@pytest.mark.parametrize("wall_off_ms", [-HOUR_MS, 0])
async def test_a_new_run_of_the_machine_never_begins_before_what_was_written(
    clocks: Clocks, tmp_path: Path, opened: list[Engine], wall_off_ms: int
) -> None:
    engine = await begin(clocks, tmp_path, opened)
    clocks.pass_ms(60_000)
    await engine.submit([order(0)])
    (last_ms,) = await times(engine)
    clocks.start_again(after_ms=30_000 + wall_off_ms)
    again = await begin(clocks, tmp_path, opened)
    (first_ms,) = await times(again)
    assert first_ms >= last_ms
    assert first_ms <= max(clocks.wall_ms, last_ms + KEEP_MS)


async def test_a_file_of_before_never_goes_back_either(
    clocks: Clocks, tmp_path: Path, opened: list[Engine]
) -> None:
    engine = await begin(clocks, tmp_path, opened)
    await engine.submit([order(0)])
    await engine.close()
    with sqlite3.connect(tmp_path / "flows.db") as raw:
        raw.execute("DELETE FROM meta WHERE name = 'clock'")
    clocks.wall_ms -= HOUR_MS
    again = await begin(clocks, tmp_path, opened)
    assert await times(again) == [START_MS]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"boot": 7}'])
async def test_a_mark_that_cannot_be_read_is_made_anew(
    clocks: Clocks, tmp_path: Path, opened: list[Engine], text: str
) -> None:
    await (await begin(clocks, tmp_path, opened)).close()
    with sqlite3.connect(tmp_path / "flows.db") as raw:
        raw.execute("UPDATE meta SET value = ? WHERE name = 'clock'", (text,))
    again = await begin(clocks, tmp_path, opened)
    assert await times(again) == [START_MS]


CHILD = """
import asyncio, sys, time
from flowfabric.engine.engine import Engine
from flowfabric.store.clock import Machine
from flowfabric.store.sqlite import SqliteStore
from flowfabric.store.sqlite.clock import this_machine

async def main(path, off_ms):
    machine = this_machine()._replace(wall_ns=lambda: time.time_ns() + off_ms * 1_000_000)
    engine = Engine(SqliteStore(path, machine=machine))
    await engine.open()
    began = this_machine().steady_ns()
    told_ms = await engine.store.now()
    print(told_ms, began // 1_000_000, flush=True)
    await engine.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def test_real_processes_with_different_wall_clocks_agree(tmp_path: Path) -> None:
    """What each is told, less what has passed by the steady clock, is the same."""
    begins: list[int] = []
    began_ms = this_machine().steady_ns() // 1_000_000
    for off_ms in (0, HOUR_MS, -HOUR_MS, 5_000):
        ran = subprocess.run(
            [sys.executable, "-c", CHILD, str(tmp_path / "flows.db"), str(off_ms)],
            capture_output=True,
            text=True,
            check=True,
        )
        told_ms, steady_ms = map(int, ran.stdout.split())
        begins.append(told_ms - steady_ms)
    passed_ms = this_machine().steady_ns() // 1_000_000 - began_ms
    assert max(begins) - min(begins) <= passed_ms // SLEW + 1
