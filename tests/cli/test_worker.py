"""`ff worker`: which app it runs, in which event loop, and until when."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flowfabric.cli import event_loop
from tests.cli.command import ff

LIMIT_SECONDS = 30
MODULE = """
import asyncio
import flowfabric as ff

app = ff.App("sqlite:///flows.db")
nothing = object()

@app.task(lane="mail")
async def loop() -> str:
    return type(asyncio.get_running_loop()).__module__

async def ask() -> str:
    handle = await loop.start()
    answer = await handle.result()
    await app.close()
    return answer
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop_of_this_test.py").write_text(MODULE)
    return tmp_path


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, *arguments], cwd=folder, stdout=-1, text=True)


@pytest.mark.parametrize("options", [(), ("--lanes", "other,mail")])
def test_a_worker_runs_an_app_in_uvloop_until_it_is_told_to_stop(
    folder: Path, options: tuple[str, ...]
) -> None:
    target = ("worker", "shop_of_this_test:app", *options)
    ask = "import asyncio, shop_of_this_test as s; print(asyncio.run(s.ask()))"
    with (
        started(folder, "-m", "flowfabric", *target) as worker,
        started(folder, "-c", ask) as asking,
    ):
        try:
            out, _ = asking.communicate(timeout=LIMIT_SECONDS)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(LIMIT_SECONDS) == 0
        finally:
            worker.kill()
            asking.kill()
    assert out.strip().partition(".")[0] == "uvloop"


def test_without_uvloop_commands_run_in_the_loop_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert event_loop.fastest_loop() is asyncio.new_event_loop


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("shop_of_this_test", "expected MODULE:APP"),
        (":app", "expected MODULE:APP"),
        ("no_such_shop:app", "no module named 'no_such_shop'"),
        ("shop_of_this_test.inner:app", "no module named 'shop_of_this_test.inner'"),
        ("shop_of_this_test:nothing", "shop_of_this_test:nothing is not a flowfabric.App"),
        ("shop_of_this_test:missing.app", "shop_of_this_test:missing.app is not a flowfabric.App"),
    ],
)
def test_what_is_no_app_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, target: str, problem: str
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    told = ff("worker", target, cwd=folder)
    assert told.returncode == 2
    assert problem in told.stderr


def test_a_module_that_misses_another_one_fails_with_its_own_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "broken_of_this_test.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        ff("worker", "broken_of_this_test:app", cwd=folder)
