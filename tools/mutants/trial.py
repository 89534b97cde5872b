"""Runs tests against a copy of the checkout in which one fault is planted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tools.mutants.areas import QUICK, STAGES, Stage
from tools.mutants.fault import Fault, read

COPIED = ("src", "tests", "tools", "docs", "examples", "benchmarks", "pyproject.toml", "Makefile")
COPIED_TEXTS = "*.md"
PYTEST = ("-m", "pytest", "-q", "-x", "--no-header", "--tb=line", "--hypothesis-seed=0")
NO_TESTS_LEFT = 5
# A machine may have other work meanwhile.
PATIENCE = 3
PATIENCE_SECONDS = 30
# So many tests may fail by chance, or for what other tests left behind, before it is no chance.
CHANCES = 3
ITSELF = "the run itself"


class Verdict(StrEnum):
    KILLED = "killed"
    SURVIVED = "survived"
    TIMED_OUT = "timed out"  # noticed as well: it did not end as it does without the fault


@dataclass(frozen=True, slots=True)
class Result:
    fault: Fault
    verdict: Verdict
    by: str


class Bench:
    """A copy of the checkout for one fault after another."""

    def __init__(self, root: Path, copy: Path, limits: dict[Stage, float]) -> None:
        self._copy = copy
        self._limits = limits
        copy.mkdir(parents=True)
        for name in COPIED:
            origin = root / name
            if origin.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(origin, copy / name, ignore=ignored)
            else:
                shutil.copy2(origin, copy / name)
        for origin in root.glob(COPIED_TEXTS):
            shutil.copy2(origin, copy / origin.name)

    def try_fault(self, fault: Fault) -> Result:
        file = self._copy / fault.path
        text = read(self._copy, fault.path)
        file.write_text(fault.plant(text), encoding="utf-8")
        try:
            for stage in STAGES[fault.place]:
                verdict, by = self._judge(stage)
                if verdict is not Verdict.SURVIVED:
                    return Result(fault, verdict, by)
        finally:
            file.write_text(text, encoding="utf-8")
        return Result(fault, Verdict.SURVIVED, "")

    def require_green(self, stage: Stage) -> None:
        """The time that it takes without a fault says when one with a fault has hung."""
        begun = time.monotonic()
        verdict, by = self._run(stage, *stage)
        self._limits[stage] = PATIENCE * (time.monotonic() - begun) + PATIENCE_SECONDS
        if verdict is not Verdict.SURVIVED:
            raise SystemExit(f"without any fault, {' '.join(stage)} does not pass: {by}")

    def _judge(self, stage: Stage) -> tuple[Verdict, str]:
        """A test that passes when it is run once more failed by chance: the others decide."""
        passed_over: list[str] = []
        while True:
            verdict, by = self._run(stage, *stage, *passed_over)
            test = by.partition(" ")[2]
            is_named = verdict is Verdict.KILLED and by != ITSELF
            if not is_named or self._run(stage, test)[0] is not Verdict.SURVIVED:
                return verdict, by
            passed_over += ["--deselect", test]
            if len(passed_over) == 2 * CHANCES:
                return verdict, by

    def _run(self, stage: Stage, *chosen: str) -> tuple[Verdict, str]:
        """These tests, with the time that the whole stage has."""
        command = [sys.executable, *PYTEST, "-m", QUICK, *chosen]
        environment = {
            **os.environ,
            "PYTHONPATH": str(self._copy / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        # A process group of its own: what a test started must end with it.
        with subprocess.Popen(
            command,
            cwd=self._copy,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=self._limits.get(stage))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                return Verdict.TIMED_OUT, " ".join(stage)
        if process.returncode in (0, NO_TESTS_LEFT):
            return Verdict.SURVIVED, ""
        return Verdict.KILLED, _first_failure(output)


def _first_failure(output: str) -> str:
    """What pytest names last, and no line of a log that begins in the same way."""
    _, is_there, summary = output.rpartition("short test summary info")
    named = summary.splitlines() if is_there else []
    lines = [line for line in named if line.startswith(("FAILED ", "ERROR "))]
    return lines[0].partition(" - ")[0] if lines else ITSELF
