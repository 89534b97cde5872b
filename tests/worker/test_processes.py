"""Workers in processes of their own: signals, and one file for several of them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flowfabric import App, Task
from flowfabric.client import results
from tests.app.stage import PATIENCE_SECONDS, kinds
from tests.conftest import store_url
from tests.worker.process import make

PROGRAM = Path(__file__).with_name("process.py")


class Process:
    """A worker process that a test talks to."""

    def __init__(self, url: str, *options: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), url, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    @property
    def id(self) -> int:
        return self._process.pid

    async def says(self) -> str:
        """Its next line."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            return (await asyncio.to_thread(self._process.stdout.readline)).rstrip()

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go on\n")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ended(self) -> int:
        return await asyncio.to_thread(self._process.wait, PATIENCE_SECONDS)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def process(url: str, *options: str) -> Iterator[Process]:
    started = Process(url, *options)
    try:
        yield started
    finally:
        started.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return store_url("sqlite", tmp_path / "shared.db")


def forever_of(app: App) -> Task[None]:
    @app.task(name="forever2")
    async def unused(name: str) -> None: ...

    return unused


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains(url: str, number: signal.Signals) -> None:
    app, work = make(url)
    with process(url) as worker:
        handle = await work.start("slow", waits=True)
        assert await worker.says() == "began slow"
        worker.send(number)
        late = await work.start("late")
        worker.go_on()
        assert await worker.says() == "bye"
        assert await worker.ended() == 0
    assert await handle.result() == f"slow done by {worker.id}"
    assert await kinds(handle) == ["submitted", "claimed", "completed"]
    await late.cancel()
    await app.close()


async def test_a_signal_hands_back_what_does_not_end_in_time(url: str) -> None:
    app, work = make(url)
    with process(url, "0s") as worker:
        handle = await work.start("slow", waits=True)
        assert await worker.says() == "began slow"
        worker.send(signal.SIGTERM)
        # The thread that still reads would keep the process; the line ends it.
        worker.go_on()
        assert await worker.says() == "bye"
        assert await worker.ended() == 0
    assert await kinds(handle) in (
        ["submitted", "claimed", "released"],
        ["submitted", "claimed", "completed"],
    )
    await app.close()


async def test_the_waiting_process_hears_of_work_done_in_another(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "NET_SECONDS", 1_000.0)
    app, work = make(url)
    with process(url) as worker:
        async with asyncio.timeout(PATIENCE_SECONDS):
            for name in ("first", "second", "third"):
                handle = await work.start(name)
                assert await handle.result() == f"{name} done by {worker.id}"
        many = await app.start_many(work.bind(f"job-{n}") for n in range(50))
        async with asyncio.timeout(PATIENCE_SECONDS):
            answers = await asyncio.gather(*(handle.result() for handle in many))
        assert answers == [f"job-{n} done by {worker.id}" for n in range(50)]
    await app.close()


async def test_two_workers_share_one_file(url: str) -> None:
    app, work = make(url)
    with process(url) as first, process(url) as second:
        handles = await app.start_many(work.bind(f"job-{n}") for n in range(300))
        async with asyncio.timeout(PATIENCE_SECONDS):
            answers = await asyncio.gather(*(handle.result() for handle in handles))
        workers = {answer.rpartition(" ")[2] for answer in answers}
    assert workers <= {str(first.id), str(second.id)}
    for handle in handles[::50]:
        assert await kinds(handle) == ["submitted", "claimed", "completed"]
    await app.close()


async def test_the_work_of_a_killed_process_is_finished_by_another(url: str) -> None:
    """The lease of five seconds is the shortest there is, and has to run out."""
    app, work = make(url, lease_ttl="5s")
    with process(url, "30s", "5s") as doomed:
        handle = await work.start("slow", waits=True)
        assert await doomed.says() == "began slow"
        doomed.send(signal.SIGKILL)
        assert await doomed.ended() == -signal.SIGKILL
    with process(url, "30s", "5s") as other:
        assert await other.says() == "began slow"
        other.go_on()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await handle.result() == f"slow done by {other.id}"
    status = await handle.status()
    assert (status.reclaim_count, status.total_attempt_count) == (1, 2)
    await app.close()
