"""`ff worker` with several processes: one that dies is replaced, a change of the sources starts
them again, and none is left when the command ends or is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import flowfabric as ff
from flowfabric.cli.worker_processes import source_times
from tests.app.stage import eventually
from tests.cli.command import ff as command

LIMIT_SECONDS = 60
MODULE = """
import os
import flowfabric as ff

app = ff.App("sqlite:///flows.db")

@app.task
def answer() -> str:
    return "before"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop_of_this_test.py").write_text(MODULE, encoding="utf-8")
    return tmp_path


@pytest.fixture
async def app(folder: Path) -> AsyncIterator[ff.App]:
    app = ff.App(f"sqlite:///{folder / 'flows.db'}")
    yield app
    await app.close()


@contextmanager
def working(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-m", "flowfabric", "worker", "shop_of_this_test:app", *options]
    with subprocess.Popen(argv, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


async def pids(app: ff.App, count: int) -> set[int]:
    """The worker processes, once there are so many that are alive."""
    found: set[int] = set()

    async def are_there() -> bool:
        nonlocal found
        found = {worker.pid for worker in await app.workers() if is_alive(worker.pid)}
        return len(found) == count

    await eventually(are_there)
    return found


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def are_gone(processes: set[int]) -> bool:
    return not any(map(is_alive, processes))


async def test_a_process_that_dies_is_replaced_and_all_drain_in_the_end(
    folder: Path, app: ff.App
) -> None:
    with working(folder, "--processes", "2") as supervisor:
        first, second = await pids(app, 2)
        assert supervisor.pid not in (first, second)
        os.kill(first, signal.SIGKILL)

        async def is_replaced() -> bool:
            alive = {worker.pid for worker in await app.workers() if is_alive(worker.pid)}
            return len(alive) == 2 and first not in alive

        await eventually(is_replaced)
        processes = await pids(app, 2)
        assert second in processes
        supervisor.terminate()
        assert supervisor.wait(LIMIT_SECONDS) == 0
        assert await are_gone(processes)
        assert supervisor.stderr is not None
        assert (
            "a worker process ended with -9; it starts again after 1 s" in supervisor.stderr.read()
        )


async def test_no_process_outlives_a_supervisor_that_is_killed(folder: Path, app: ff.App) -> None:
    with working(folder, "--processes", "2") as supervisor:
        processes = await pids(app, 2)
        supervisor.kill()
        supervisor.wait(LIMIT_SECONDS)
        await eventually(lambda: are_gone(processes))


async def test_a_change_of_the_sources_starts_the_workers_again(folder: Path, app: ff.App) -> None:
    async def answer() -> object:
        (handle,) = await app.start_many([asking.bind()])
        return await handle.result()

    @app.task(name="answer")
    def asking() -> str:
        return ""

    async def is_new() -> bool:
        return await answer() == "after"

    with working(folder, "--reload") as supervisor:
        assert await answer() == "before"
        module = folder / "shop_of_this_test.py"
        module.write_text("this is no Python", encoding="utf-8")
        assert supervisor.stderr is not None
        while "starts again after the next change" not in supervisor.stderr.readline():
            assert supervisor.poll() is None
        module.write_text(MODULE.replace("before", "after"), encoding="utf-8")
        await eventually(is_new)
        supervisor.terminate()
        assert supervisor.wait(LIMIT_SECONDS) == 0


def test_a_mistake_is_said_before_any_process_is_started(folder: Path) -> None:
    said = command("worker", "shop_of_this_test:nothing", "--processes", "2", cwd=folder)
    assert said.returncode == 2
    assert "shop_of_this_test:nothing is not a flowfabric.App" in said.stderr


def test_only_sources_of_the_project_are_watched(tmp_path: Path) -> None:
    for name in ("shop/a.py", "shop/text.txt", ".git/b.py", "env/pyvenv.cfg", "env/c.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert set(source_times(tmp_path)) == {str(tmp_path / "shop" / "a.py")}
