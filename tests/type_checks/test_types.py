"""`mypy --strict` accepts right use of the public names, and refuses exactly the marked lines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CASES = Path(__file__).resolve().parent / "cases"
MARK = re.compile(r"# error$")
FOUND = re.compile(r"^(.+?):(\d+): error: (.*)$")


def marked() -> set[str]:
    return {
        f"{path.name}:{number}"
        for path in CASES.glob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if MARK.search(line)
    }


def test_a_type_checker_refuses_exactly_the_marked_lines() -> None:
    """One run for all cases; what `make check` has looked at is not looked at again."""
    paths = sorted(str(path.relative_to(ROOT)) for path in CASES.glob("*.py"))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--hide-error-context", *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stderr == ""
    found = [match for line in done.stdout.splitlines() if (match := FOUND.match(line))]
    refused = {f"{Path(match[1]).name}:{match[2]}" for match in found}
    wrongly = [match[0] for match in found if f"{Path(match[1]).name}:{match[2]}" not in marked()]
    assert wrongly == []
    assert sorted(marked() - refused) == []
    assert len(marked()) > 40
