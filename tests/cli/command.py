"""Runs the command line as people do: in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

LIMIT_SECONDS = 100


def ff(
    *arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What `ff` with these arguments printed, and its exit code."""
    return subprocess.run(
        [sys.executable, "-m", "flowfabric", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=os.environ | (env or {}),
        stdin=subprocess.DEVNULL,
        timeout=LIMIT_SECONDS,
    )
