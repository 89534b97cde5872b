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

from flowfabric.client import results
from tests.app.stage import PATIENCE_SECONDS, eventually, kinds
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

    async def is_ended_by(self, number: signal.Signals) -> bool:
        self.send(number)
        return self._process.poll() is not None

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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains(url: str, number: signal.Signals) -> None:
    app, work, _ = make(url)
    with process(url) as worker:
        handle = await work.start("slow", waits=True)
        assert await worker.says() == "began slow"
        worker.send(number)
        worker.go_on()
        assert await worker.says() == "bye"
        assert await worker.ended() == 0
    assert await handle.result() == f"slow done by {worker.id}"
    assert await kinds(handle) == ["submitted", "claimed", "completed"]
    await app.close()


async def test_a_signal_hands_back_what_does_not_end_in_time(url: str) -> None:
    app, _, forever = make(url)
    with process(url, "0s") as worker:
        handle = await forever.start("endless")
        assert await worker.says() == "began endless"
        worker.send(signal.SIGTERM)
        assert await worker.says() == "stopped endless"
        assert await worker.says() == "bye"
        assert await worker.ended() == 0
    assert await kinds(handle) == ["submitted", "claimed", "released"]
    assert (await handle.explain()).wakes == "worker"
    await app.close()


async def test_a_second_signal_ends_it_at_once(url: str) -> None:
    app, _, forever = make(url)
    with process(url, "1000s") as worker:
        handle = await forever.start("endless")
        assert await worker.says() == "began endless"
        await eventually(lambda: worker.is_ended_by(signal.SIGTERM))
        assert await worker.ended() == -signal.SIGTERM
    assert (await handle.explain()).wakes == "lease"
    await app.close()


async def test_the_waiting_process_hears_of_work_done_in_another(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "NET_SECONDS", 1_000.0)
    app, work, _ = make(url)
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
    app, work, _ = make(url)
    with process(url) as first, process(url) as second:
        handles = await app.start_many(work.bind(f"job-{n}") for n in range(300))
        async with asyncio.timeout(PATIENCE_SECONDS):
            answers = await asyncio.gather(*(handle.result() for handle in handles))
        workers = {answer.rpartition(" ")[2] for answer in answers}
    assert workers <= {str(first.id), str(second.id)}
    for handle in handles[::50]:
        assert await kinds(handle) == ["submitted", "claimed", "completed"]
    await app.close()
