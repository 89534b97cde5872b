"""Changing many executions: a few at a time, at a bounded rate, with what was done so far."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from flowfabric.core.ids import ExecutionId, public_id
from flowfabric.errors import FlowFabricError, InvalidInput, StoreMismatch, StoreUnavailable

# How many changes are under way at once, and how many begin in a second unless it is said.
AT_ONCE = 50
PER_SECOND = 500

Change = Callable[[ExecutionId], Awaitable[object]]
# What stops the whole: the next change would meet it as well.
_STOPS = (StoreUnavailable, StoreMismatch)


class Changed(int):
    """How many executions a bulk verb has changed, as a number; `refused` says which it could not
    change, by their ids, and why."""

    refused: Mapping[str, FlowFabricError]

    def __new__(
        cls, done: int = 0, refused: Mapping[str, FlowFabricError] | None = None
    ) -> Changed:
        made = super().__new__(cls, done)
        made.refused = dict(refused or {})
        return made

    def __repr__(self) -> str:
        return f"Changed({int(self)}, refused={self.refused!r})"


class Bulk:
    """One bulk change; `done` counts and `refused` collects while it goes on."""

    def __init__(self, change: Change, per_second: int) -> None:
        if per_second < 1:
            raise InvalidInput(
                f"per_second must be at least 1 (got {per_second!r})",
                field="per_second",
                hint="use 1 or more",
            )
        self._change = change
        self._per_second = per_second
        self._done = 0
        self._refused: dict[str, FlowFabricError] = {}
        self._began: float | None = None
        self._begun = 0

    @property
    def so_far(self) -> Changed:
        return Changed(self._done, self._refused)

    async def run(self, ids: Sequence[ExecutionId]) -> None:
        size = min(AT_ONCE, self._per_second)
        for start in range(0, len(ids), size):
            some = ids[start : start + size]
            await self._keep_pace(len(some))
            errors = await asyncio.gather(*map(self._tried, some))
            for id, error in zip(some, errors, strict=True):
                if error is None:
                    self._done += 1
                else:
                    self._refused[public_id(id)] = error

    async def _tried(self, id: ExecutionId) -> FlowFabricError | None:
        try:
            await self._change(id)
        except _STOPS:
            raise
        except FlowFabricError as error:
            return error
        return None

    async def _keep_pace(self, count: int) -> None:
        """Wait until what has begun by then is no more than the rate allows."""
        now = asyncio.get_running_loop().time()
        self._began = now if self._began is None else self._began
        early = self._began + self._begun / self._per_second - now
        self._begun += count
        if early > 0:
            await asyncio.sleep(early)
