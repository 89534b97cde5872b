"""Shifts: one statement takes those that are free and answers all of them."""

from __future__ import annotations

from collections.abc import Sequence

from flowfabric.core.model import Shift
from flowfabric.store.damage import shift_or_free
from flowfabric.store.postgres.calls import Call, answered
from flowfabric.store.postgres.driver import Connection
from flowfabric.store.postgres.statements import Argument


async def take(connection: Connection, call: Call, asks: Sequence[Shift]) -> list[Shift]:
    arguments: dict[str, Argument] = {
        **call.arguments,
        "names": [ask.name for ask in asks],
        "owners": [ask.owner for ask in asks],
        "untils": [ask.until_ms for ask in asks],
        "reports": [ask.report for ask in asks],
    }
    statement = call.sql.named("shift_take")
    records = answered(await statement.fetch(connection, arguments), call)
    return [shift_or_free(*tuple(record)[2:]) for record in records if record["name"] is not None]
