"""Programs that workers of the simulation run: the tasks each one knows, the payloads it can read.

What is deployed when is in `rollout.py`. Nothing here acts.
"""

from __future__ import annotations

import msgspec

TASKS = ("greet", "mail", "count", "ship")
VERSIONS = (1, 2)


class Program(msgspec.Struct, frozen=True):
    """What one worker is able to run."""

    tasks: tuple[str, ...] = TASKS
    versions: tuple[int, ...] = VERSIONS

    def knows(self, task: str) -> bool:
        return task in self.tasks

    def reads(self, payload: bytes) -> bool:
        return msgspec.json.decode(payload, type=_Payload).version in self.versions


class _Payload(msgspec.Struct):
    version: int


def payload_of(version: int) -> bytes:
    return msgspec.json.encode(_Payload(version))


def shares(count: int) -> list[Program]:
    """Programs of so many workers that know every task together, and each only its own."""
    return [Program(TASKS[place::count]) for place in range(count)]
