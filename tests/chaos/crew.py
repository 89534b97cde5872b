"""The processes of the lab, and what is done to them. No test lives here."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.chaos.clock import PLACE

PROGRAM = Path(__file__).with_name("program.py")
ROOT = PROGRAM.parent.parent.parent
END_SECONDS = 30.0


class Member:
    """One place in the crew: whoever fills it, when the last one has died."""

    def __init__(self, role: str, url: str, folder: Path) -> None:
        self.role = role
        self._command = [sys.executable, str(PROGRAM), url, role, str(folder / "done.txt")]
        self._log = (folder / "processes.log").open("ab")
        self._wall = str(folder / "wall")
        self._process = self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        known = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(known), PLACE: self._wall}
        return subprocess.Popen(self._command, env=environment, stdout=self._log, stderr=self._log)

    def tend(self) -> None:
        """Start another if it is gone."""
        if self._process.poll() is not None:
            self._process = self._begin()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop_for(self, seconds: float) -> None:
        stopped = self._process
        stopped.send_signal(signal.SIGSTOP)
        asyncio.get_running_loop().call_later(seconds, stopped.send_signal, signal.SIGCONT)

    def close(self) -> int:
        """Ask it to end, as an operator would; answers how it did."""
        for number in (signal.SIGCONT, signal.SIGTERM):
            self._process.send_signal(number)
        try:
            return self._process.wait(END_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            self._log.close()


class Crew:
    """Workers and engines on one store."""

    def __init__(self, url: str, folder: Path, *, workers: int, engines: int) -> None:
        roles = ["worker"] * workers + ["engine"] * engines
        self.members = [Member(role, url, folder) for role in roles]
        self.fates: Counter[str] = Counter()

    def tend(self) -> None:
        for member in self.members:
            member.tend()

    def kill(self, member: Member) -> None:
        self.fates[f"{member.role} killed"] += 1
        member.kill()

    def stop(self, member: Member, seconds: float) -> None:
        self.fates[f"{member.role} stopped"] += 1
        member.stop_for(seconds)

    def close(self) -> list[int]:
        return [member.close() for member in self.members]
