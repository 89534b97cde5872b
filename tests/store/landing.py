"""The code of the release before the newest layout, kept to run beside that of today.

`python -m tests.store.landing COMMIT` keeps that commit instead: do it when the layout of a store
changes, with the commit that was released last. No test lives here.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

KEPT = Path(__file__).with_name("before") / "flowfabric.tar.xz"
# What a worker needs; the rest only makes the file large.
LEFT_OUT = ("testing", "cli")


def unpack(folder: Path) -> Path:
    """The folder to put on the path of an interpreter."""
    with tarfile.open(KEPT) as archive:
        archive.extractall(folder, filter="data")
    return folder


def keep(commit: str) -> None:
    without = [f":(exclude)flowfabric/{name}" for name in LEFT_OUT]
    made = subprocess.run(
        ["git", "archive", "--format=tar", f"{commit}:src", "--", "flowfabric", *without],
        check=True,
        capture_output=True,
    )
    packed = subprocess.run(["xz", "-9e"], input=made.stdout, check=True, capture_output=True)
    KEPT.write_bytes(packed.stdout)


if __name__ == "__main__":
    keep(sys.argv[1])
