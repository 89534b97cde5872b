"""What a good library does and does not do to the program that imports it."""

from __future__ import annotations

import importlib.resources
import subprocess
import sys
from pathlib import Path

import flowfabric
from tests.tidy_rules import PUBLIC_NAMES_MAX


def run(code: str, folder: Path) -> str:
    """What a fresh process prints; it must end well and say nothing else."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


QUIET = """
import asyncio, logging
before = (logging.root.level, logging.root.handlers[:], logging.raiseExceptions)
import flowfabric as ff

app = ff.App("sqlite:///flows.db")

@app.task(retries=ff.RetryPolicy(max_retries=1, backoff=ff.Fixed(1)))
async def work(ctx: ff.Context) -> int:
    if ctx.attempt == 0:
        raise ValueError("told to nobody but the log")
    ctx.log.warning("also told to nobody")
    return 1

async def main():
    async with app.running():
        handle = await work.start()
        await handle.result()
        late = await work.start(delay="1h")
        await late.cancel()

asyncio.run(main())
assert (logging.root.level, logging.root.handlers, logging.raiseExceptions) == before
ours = [name for name in logging.root.manager.loggerDict if name.startswith("flowfabric")]
for name in ours:
    logger = logging.getLogger(name)
    assert logger.level == logging.NOTSET and logger.propagate and not logger.disabled
    kinds = {type(handler) for handler in logger.handlers}
    assert kinds <= {logging.NullHandler}, (name, kinds)
assert type(logging.getLogger("flowfabric").handlers[0]) is logging.NullHandler
print(sorted(ours)[0])
"""


def test_the_library_never_configures_logging(tmp_path: Path) -> None:
    assert run(QUIET, tmp_path) == "flowfabric\n"


def test_importing_it_imports_no_driver_and_no_command_line(tmp_path: Path) -> None:
    code = (
        "import sys, flowfabric; "
        "heavy = 'typer', 'rich', 'pytest', 'hypothesis', 'asyncpg', 'redis', 'pydantic'; "
        "print([name for name in heavy if name in sys.modules])"
    )
    assert run(code, tmp_path) == "[]\n"


def test_every_public_name_exists_and_there_are_few() -> None:
    assert flowfabric.__all__ == sorted(set(flowfabric.__all__), key=str)
    assert len(flowfabric.__all__) <= PUBLIC_NAMES_MAX
    for name in flowfabric.__all__:
        assert getattr(flowfabric, name) is not None


def test_type_checkers_are_told_that_it_is_typed() -> None:
    assert importlib.resources.files("flowfabric").joinpath("py.typed").is_file()
