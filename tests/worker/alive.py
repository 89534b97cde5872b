"""Whether processes live, asked until they do not. No test lives here."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.app.stage import eventually


def is_alive(pid: int) -> bool:
    """What is dead may wait for its parent to hear of it."""
    if Path("/proc/self").exists():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        except (FileNotFoundError, ProcessLookupError):
            return False
        return stat.rpartition(")")[2].split()[0] not in "ZX"
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, check=False)
    return bool(shown.stdout.strip()) and not shown.stdout.strip().startswith(b"Z")


async def dead(*pids: int) -> None:
    async def are_dead() -> bool:
        return not any(map(is_alive, pids))

    await eventually(are_dead)


async def begun(place: Path) -> tuple[int, int]:
    """The process of a task that has begun, and the one that it has started."""

    async def is_written() -> bool:
        return place.exists()

    await eventually(is_written)
    first, second = map(int, place.read_text(encoding="utf-8").split())
    assert is_alive(first)
    assert is_alive(second)
    return first, second
