"""Runs the command line as people do: from its words to its exit code.

`ff` runs it in this process; `ff_process` takes one of its own, for what is about processes.
"""

import io
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from flowfabric.cli.main import main

LIMIT_SECONDS = 100


def ff(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What `ff` with these arguments printed, and its exit code."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with (
        chdir(cwd or Path.cwd()),
        patch.object(sys, "argv", ["ff", *arguments]),
        _logging_kept(),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    assert isinstance(code, int)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


@contextmanager
def _logging_kept() -> Iterator[None]:
    """A command configures logging for its whole process."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers
    root.handlers = []
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(level)


def ff_process(
    *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The same as a program."""
    return subprocess.run(
        [sys.executable, "-m", "flowfabric", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | (env or {}),
        stdin=subprocess.DEVNULL,
        timeout=LIMIT_SECONDS,
    )
