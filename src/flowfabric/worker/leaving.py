"""Leaving tasks behind that nothing can end."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast


class _Quiet(Protocol):
    _log_destroy_pending: bool


def leave_behind(task: asyncio.Task[None]) -> None:
    """Let the event loop be closed without this task, which swallows its cancellation.

    `asyncio.run` cancels all tasks that it knows of and waits for them, for ever if one goes on.
    """
    asyncio._unregister_task(task)
    # Nothing is wrong with that: it was said already that the task is left behind.
    cast(_Quiet, task)._log_destroy_pending = False
