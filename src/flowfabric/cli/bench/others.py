"""Another process beside a bench: it is told a line, and answers with one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flowfabric.errors import FlowFabricError

READY = "ready"


class Other:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, line: str) -> str:
        """What it answers to this line, or why it cannot any more. A URL may hold a password, so
        that what is told is never an argument of the process."""
        process = self._process
        if process.stdin is None or process.stdout is None:
            raise FlowFabricError("the other process has no input or output pipe")
        process.stdin.write(f"{line}\n".encode())
        answer = (await process.stdout.readline()).decode().strip()
        if not answer:
            raise await self._fallen()
        return answer

    async def _fallen(self) -> FlowFabricError:
        said = b"" if self._process.stderr is None else await self._process.stderr.read()
        last = said.decode(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
        return FlowFabricError(f"the other process failed: {last[0]}")


@asynccontextmanager
async def other(module: str, line: str) -> AsyncIterator[Other]:
    """A process that runs this module, once it has answered the line with `ready`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        found = Other(process)
        answer = await found.ask(line)
        if answer != READY:
            raise FlowFabricError(f"expected {READY!r} from the other process, got {answer!r}")
        yield found
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
