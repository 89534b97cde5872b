"""Whichever way the owner of private servers ends, its servers and their folders end with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from flowfabric.errors import StoreUnavailable
from flowfabric.testing.servers import guardian
from flowfabric.testing.servers.process import STOP_SECONDS, Keeper, Program, ServerProcess

OWNER = """
    import json, os, sys
    from flowfabric.testing.servers import postgres_server, valkey_server

    with postgres_server() as postgres, valkey_server() as valkey:
        {before}
        print(json.dumps([postgres.pid, valkey.pid]), flush=True)
        sys.stdin.read()
"""
# The child keeps every pipe of its parent open but the ones that the test listens on.
FORKING = """
        if os.fork() == 0:
            os.close(1)
            os.close(2)
            sys.stdin.read()
            os._exit(0)
"""
# A program that ignores all that can be ignored.
DEAF = """
import signal, sys
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
open(sys.argv[1], "w").close()
while True:
    signal.pause()
"""


@contextmanager
def owner(before: str = "") -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A process with two servers, and their process ids."""
    script = dedent(OWNER).format(before=dedent(before).strip().replace("\n", "\n    "))
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        pids: list[int] = json.loads(process.stdout.readline())
        for pid in pids:
            os.kill(pid, 0)
        yield process, pids


def wait_for_guardians(process: subprocess.Popen[str]) -> str:
    """They hold the owner's standard error until they have cleaned up."""
    assert process.stderr is not None
    return process.stderr.read()


def assert_gone(pids: list[int], room: Path) -> None:
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert list(room.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_an_owner_that_was_killed(number: signal.Signals, room: Path) -> None:
    with owner() as (process, pids):
        assert len(list(room.iterdir())) == 2
        process.send_signal(number)
        assert wait_for_guardians(process) == ""
        assert_gone(pids, room)
    assert process.returncode == -number


def test_nothing_outlives_an_owner_that_ends_well(room: Path) -> None:
    with owner() as (process, pids):
        assert process.stdin is not None
        process.stdin.close()
        assert wait_for_guardians(process) == ""
        assert_gone(pids, room)
    assert process.returncode == 0


def test_the_child_of_a_dead_owner_keeps_nothing_alive(room: Path) -> None:
    with owner(FORKING) as (process, pids):
        process.kill()
        assert wait_for_guardians(process) == ""
        assert_gone(pids, room)


def test_a_server_that_heeds_no_signal_is_ended_all_the_same(room: Path) -> None:
    with Keeper() as keeper:
        ready = keeper.folder / "ready"
        server = ServerProcess(keeper, "deaf")
        argv = [sys.executable, "-c", DEAF, str(ready)]
        server.start(Program("the deaf", keeper.folder, argv, end_signal=signal.SIGTERM))
        server.wait_until(ready.exists)
        pid = server.pid
        assert pid is not None
    assert_gone([pid], room)


@pytest.mark.parametrize("is_waited_for", [False, True])
def test_a_server_that_closes_its_pipe_does_not_outlive_it(room: Path, is_waited_for: bool) -> None:
    with Keeper() as keeper:
        ready = keeper.folder / "ready"
        os.mkfifo(ready)
        server = ServerProcess(keeper, "deaf")
        argv = [sys.executable, "-c", f"import os; os.closerange(3, 256)\n{DEAF}", str(ready)]
        server.start(Program("the deaf", keeper.folder, argv, end_signal=signal.SIGTERM))
        pid = server.pid
        assert pid is not None
        assert ready.read_bytes() == b""
        if is_waited_for:
            assert server.wait(STOP_SECONDS) == -signal.SIGKILL
    assert_gone([pid], room)


def test_a_guardian_that_is_asked_to_end_cleans_up_first(room: Path) -> None:
    with Keeper() as keeper:
        server = ServerProcess(keeper, "deaf")
        server.start(Program("the deaf", keeper.folder, [sys.executable, "-c", "input()"]))
        os.kill(keeper.pid, signal.SIGTERM)
        with pytest.raises(StoreUnavailable, match="gone"):
            server.wait_until(lambda: False)
        assert list(room.iterdir()) == []


def test_a_program_that_is_not_there_is_an_error(room: Path) -> None:
    with Keeper() as keeper:
        server = ServerProcess(keeper, "ghost")
        with pytest.raises(StoreUnavailable, match=r"cannot be started.*No such file"):
            server.start(Program("the ghost", keeper.folder, [str(keeper.folder / "ghost")]))
        assert server.pid is None
    with pytest.raises(StoreUnavailable, match="gone"):
        server.start(Program("the ghost", room, ["ghost"]))


def test_a_program_that_ends_at_once_is_quoted(room: Path) -> None:
    with Keeper() as keeper:
        server = ServerProcess(keeper, "brief")
        argv = [sys.executable, "-c", "print('no room'); raise SystemExit(3)"]
        server.start(Program("the brief", keeper.folder, argv))
        with pytest.raises(StoreUnavailable, match=r"the brief ended with code 3.*\\nno room"):
            server.wait_until(lambda: False)


def test_children_are_found_without_the_files_of_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    def ps(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, "    1     0\n   20     1\n   30    20\n")

    monkeypatch.setattr(subprocess, "run", ps)
    assert guardian._from_ps() == [(1, 0), (20, 1), (30, 20)]


def test_a_place_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="cannot create a folder"):
        Keeper(str(tmp_path / "gone"))
