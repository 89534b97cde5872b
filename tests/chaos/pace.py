"""Time passes, in a lab that lasts as long as it is told to. No test lives here."""

from __future__ import annotations

import asyncio


async def rest(seconds: float) -> None:
    """Let so much time pass for others."""
    over = asyncio.Event()
    timer = asyncio.get_running_loop().call_later(seconds, over.set)
    try:
        await over.wait()
    finally:
        timer.cancel()
