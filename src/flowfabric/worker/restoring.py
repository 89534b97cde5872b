"""Give an attempt the context that its submission was made in, if the app has a carrier.

A carrier that fails, or a context that cannot be read, is logged; the attempt runs without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from flowfabric.core.carried import Carrier, from_tags
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Lease
from flowfabric.engine.engine import Engine
from flowfabric.errors import FlowFabricError
from flowfabric.loggers import logger_of

logger = logger_of("flowfabric.worker")

_Tags = asyncio.Task[dict[ExecutionId, dict[str, str]]]


class Restorer:
    """One per worker. Without a carrier it asks for nothing."""

    def __init__(self, engine: Engine, carrier: Carrier | None) -> None:
        self._engine = engine
        self._carrier = carrier
        self._asked: dict[tuple[ExecutionId, int], _Tags] = {}

    def ask(self, leases: Sequence[Lease]) -> None:
        """Read the contexts of what begins now, in one question for all."""
        if self._carrier is None or not leases:
            return
        ids = [lease.id for lease in leases]
        asking = asyncio.get_running_loop().create_task(self._engine.read.tags_of(ids))
        self._asked |= {(lease.id, lease.epoch): asking for lease in leases}

    async def enter(self, lease: Lease) -> AbstractContextManager[object] | None:
        """Before the attempt; what is answered goes to `leave` after it."""
        if not self._asked:
            return None
        return enter(self._carrier, await self.saved(lease), lease)

    async def saved(self, lease: Lease) -> dict[str, str]:
        """The context of its submitter; empty if there is none, or it could not be read."""
        asked = self._asked.pop((lease.id, lease.epoch), None)
        return {} if asked is None else await _answer(asked, lease)


def enter(
    carrier: Carrier | None, saved: Mapping[str, str], lease: Lease
) -> AbstractContextManager[object] | None:
    """What is answered goes to `leave`."""
    if carrier is None or not saved:
        return None
    try:
        manager = carrier.restore(saved)
        manager.__enter__()
    except Exception:
        logger.exception(
            "could not restore the context of %s", lease.id, extra={"execution": lease.id}
        )
        return None
    return manager


def leave(entered: AbstractContextManager[object] | None, lease: Lease) -> None:
    """Without the exception: what became of the attempt is not for the hook to change."""
    if entered is None:
        return
    try:
        entered.__exit__(None, None, None)
    except Exception:
        logger.exception(
            "could not leave the context of %s", lease.id, extra={"execution": lease.id}
        )


async def _answer(asked: _Tags, lease: Lease) -> dict[str, str]:
    try:
        return from_tags((await asyncio.shield(asked)).get(lease.id, {}))
    except FlowFabricError as error:
        logger.warning(
            "could not read the context of %s: %s",
            lease.id,
            error,
            extra={"execution": lease.id, "error": error.code},
        )
        return {}
