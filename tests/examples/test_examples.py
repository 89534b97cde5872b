"""Every example runs to its printed end, in a folder of its own, and leaves nothing behind."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples"
NAMES = sorted(path.name for path in FOLDER.glob("*.py"))
LINES_MAX = 80

INSTANT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"

# One pattern per printed line; the first worker of the crash has no last word.
EXPECTED: dict[str, list[str]] = {
    "01_hello.py": ["HELLO, WORLD!"],
    "02_retries.py": [
        *(rf"attempt {attempt}: https://example\.org" for attempt in range(3)),
        "got <html>",
        "failed: bad_card - 'my card' is no card number",
        "  submitted",
        *["  claimed", "  retry_scheduled", "  promoted"] * 2,
        "  claimed",
        "  completed",
    ],
    "03_many.py": [" 900 fine", " 100 division by zero"],
    "04_cancel_and_deadline.py": [
        "stopped watching the pot",
        "cancelled: dinner is ready",
        "stopped watching the clock",
        "expired: execution_deadline",
        "still delayed",
    ],
    "08_graph.py": ["published: quick read <home>", "slow was cancelled"],
    "05_explain.py": [
        r"no worker yet: no live worker serves lane `mail`; no worker is alive \[worker\]",
        rf"delayed: delayed until {INSTANT} \(in .*\) \[timer\]",
        r"lane paused: lane 'mail' is paused; resume the lane to go on \[lane\]",
        rf"done: completed at {INSTANT} \[over\]",
        rf"cancelled: cancelled at {INSTANT}: wrong address \[over\]",
    ],
    "06_two_processes.py": [
        *(f"job {job} was done by process of the worker" for job in range(3)),
        "submitted and printed by another one: True",
        "the worker left with code 0",
    ],
    "07_crash.py": [
        "first worker:  attempt 0 begins",
        "killed; now it is active",
        "second worker: attempt 1 begins",
        "the house is built",
        "history: submitted, claimed, lease_expired, claimed, completed",
    ],
}


@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_to_its_printed_end(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(FOLDER / name)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    printed = done.stdout.splitlines()
    assert len(printed) == len(EXPECTED[name]), done.stdout
    for line, pattern in zip(printed, EXPECTED[name], strict=True):
        assert re.fullmatch(pattern, line)
    assert list(tmp_path.iterdir()) == []


def test_every_example_says_what_it_prints() -> None:
    assert sorted(EXPECTED) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_short_and_listed(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert text.count("\n") < LINES_MAX
    assert f"[`{name}`]({name})" in (FOLDER / "README.md").read_text(encoding="utf-8")
