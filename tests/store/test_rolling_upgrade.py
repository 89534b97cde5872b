"""A rolling deploy over a new layout: the worker of the release before is refused before it takes
any work, and everything is done by those of today."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import flowfabric as ff
from flowfabric.store import open_store
from tests.app.stage import PATIENCE_SECONDS
from tests.conftest import discard
from tests.servers import store_url
from tests.store import landing

PROGRAM = Path(__file__).with_name("previous_worker.py")
WORK = 20


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return landing.unpack(tmp_path_factory.mktemp("before"))


class PreviousWorker:
    """A process with the code of the release before."""

    def __init__(self, url: str, code: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM), url],
            env={**os.environ, "PYTHONPATH": str(code)},
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    async def says(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            return (await asyncio.to_thread(self._process.stdout.readline)).rstrip()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@pytest.fixture(params=["sqlite", "postgres", "valkey", "valkey-cluster"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of a store that nobody has set up yet: the release before does that."""
    url = store_url(str(request.param), tmp_path / "store.db", is_new=True)
    yield url
    asyncio.run(_dropped(url))


async def _dropped(url: str) -> None:
    store = open_store(url)
    await store.migrate()
    await discard(store)


async def test_the_worker_of_the_release_before_takes_nothing(url: str, before: Path) -> None:
    old = PreviousWorker(url, before)
    try:
        assert await old.says() == "hello old"
        app = ff.App(url)

        @app.task
        async def greet(name: str) -> str:
            return f"welcome {name}"

        await app.connect()
        handles = [await greet.start(str(n)) for n in range(WORK)]
        assert await old.says() == "refused: store_mismatch"
        async with app.running():
            answers = [await handle.result() for handle in handles]
            attempts = [await handle.attempts() for handle in handles]
        assert answers == [f"welcome {n}" for n in range(WORK)]
        assert [len(each) for each in attempts] == [1] * WORK
    finally:
        old.close()
