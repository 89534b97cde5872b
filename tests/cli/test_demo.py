"""The demo as a newcomer runs it: real processes, a real kill, nothing left behind."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flowfabric import App
from flowfabric.cli.demo.crew import Crew
from flowfabric.cli.demo.run import run
from flowfabric.errors import FlowFabricError
from tests.cli.command import LIMIT_SECONDS, ff_process

ORDERS = 6
MEMBERS = 4 + 3 + 1 + 3 + 1 + 3
EXECUTIONS = MEMBERS + ORDERS + 3 + 1
LOSERS = ["model clever", "model huge", "reader Cyd"]
PROCESS = re.compile(r"worker \d  is process (\d+)")


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """The temporary directory of the demo, empty and only for it."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_killed_worker_loses_nothing(scratch: Path) -> None:
    arguments = ("demo", "--orders", str(ORDERS), "--json")
    ran = ff_process(*arguments, env={"TMPDIR": str(scratch), "FORCE_COLOR": "1"})
    assert ran.returncode == 0, ran.stderr
    (text,) = ran.stdout.splitlines()
    proof = json.loads(text)

    assert proof["problems"] == []
    assert proof["executions"] == EXECUTIONS
    ended = {"failed": 2, "cancelled": 4, "skipped": 1}
    completed = EXECUTIONS - sum(ended.values())
    assert proof["outcomes"] == {"completed": completed} | ended
    assert proof["attempts"]["initial"] == EXECUTIONS - ended["skipped"]
    assert proof["attempts"]["retry"] == 2
    assert proof["effects"] - proof["effects_repeated"] == completed
    assert (proof["asked_again"], proof["created_again"]) == (ORDERS, 0)

    killed = proof["killed"]
    assert killed["held"] >= 2
    assert killed["finished_by_other"] == killed["held"]
    assert proof["attempts"]["reclaim"] >= killed["held"]

    members = proof["flow"]["members"]
    assert len(members) == MEMBERS
    assert members["model swift"]["detail"] in members["write invitation"]["detail"]
    assert [label for label, member in members.items() if member["stopped"]] == LOSERS
    assert {members[label]["detail"] for label in LOSERS} == {"sibling_quorum_satisfied"}
    assert members["send invitation"]["detail"] == "sent: Ann agrees, Ben agrees"
    assert members["print translation"] == {
        "state": "skipped",
        "attempts": 0,
        "effects": 0,
        "detail": "dependency_impossible",
        "stopped": False,
    }
    assert members["tell the editor"]["state"] == "completed"

    assert "\x1b" not in ran.stderr
    told = ran.stderr
    assert f"KILLED in the middle of {killed['held']} executions" in told
    other = 3 - killed["worker"]
    assert told.count(f"worker {other}  takes over") >= killed["held"]
    processes = [int(found) for found in PROCESS.findall(told)]
    assert killed["process_id"] in processes
    assert len(set(processes)) == 2
    assert not any(is_running(process_id) for process_id in processes)
    assert list(scratch.iterdir()) == []


def read_until(terminal: int, wanted: bytes) -> bytes:
    """What the terminal shows until these words, or until its program is gone."""
    shown = b""
    while wanted not in shown:
        ready, _, _ = select.select([terminal], [], [], LIMIT_SECONDS)
        assert ready, shown
        try:
            chunk = os.read(terminal, 65_536)
        except OSError:
            # Linux says so when the last user of a terminal is gone.
            chunk = b""
        if not chunk:
            break
        shown += chunk
    return shown


def test_in_a_terminal_it_is_live_and_stops_at_once_when_asked(scratch: Path) -> None:
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "flowfabric", "demo", "--orders", str(ORDERS)],
        env=os.environ | {"TMPDIR": str(scratch), "TERM": "xterm", "NO_COLOR": "1"},
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
    )
    os.close(inside)
    shown = read_until(terminal, b"is process")
    # As a terminal does for Ctrl-C: the workers are told too.
    os.killpg(process.pid, signal.SIGINT)
    shown += read_until(terminal, b"no such words are ever shown")
    os.close(terminal)

    assert process.wait(LIMIT_SECONDS) == 130
    assert b"FlowFabric demo" in shown
    assert b"\x1b[2K" in shown
    assert re.search(rb"\x1b\[[0-9;]*3[0-7]m", shown) is None
    assert b"Stopped; the workers have ended" in shown
    assert b"Traceback" not in shown
    assert list(scratch.iterdir()) == []


def test_a_worker_that_cannot_start_is_reported(scratch: Path, tmp_path: Path) -> None:
    """Nobody waits for work that nobody can do."""
    broken = tmp_path / "sitecustomize.py"
    broken.write_text(
        "import os, sys\n"
        "if 'flowfabric.cli.demo.worker' in sys.orig_argv:\n"
        "    print('no room for a worker', file=sys.stderr, flush=True)\n"
        "    os._exit(3)\n",
        encoding="utf-8",
    )
    path = os.pathsep.join(part for part in (str(tmp_path), os.environ.get("PYTHONPATH")) if part)
    ran = ff_process("demo", env={"TMPDIR": str(scratch), "PYTHONPATH": path})
    assert ran.returncode == 1
    assert re.fullmatch(r"Error: worker \d stopped with code 3: no room for a worker\n", ran.stderr)
    assert list(scratch.iterdir()) == []


def test_the_url_of_the_store_is_not_an_argument(scratch: Path, tmp_path: Path) -> None:
    """Arguments can be read by everybody on the machine."""
    url = f"sqlite:///{tmp_path.as_posix()}/secret.db"
    with Crew(url, "demo", scratch, effects=scratch / "effects") as crew:
        commands = [process.args for process in crew._processes.values()]
    assert commands
    assert not [command for command in commands if "secret" in str(command)]


def test_trouble_that_an_interrupt_makes_does_not_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(crew: Crew) -> None:
        signal.raise_signal(signal.SIGINT)

    async def close(app: App) -> None:
        await closed(app)
        raise FlowFabricError("worker 1 stopped with code 130")

    closed = App.close
    monkeypatch.setattr(Crew, "check", check)
    monkeypatch.setattr(App, "close", close)
    with pytest.raises(KeyboardInterrupt):
        run(None, orders=ORDERS, out=io.StringIO())
