"""Counting what a statement costs: each is rehearsed just before it really runs, and undone.

No test lives here.
"""

from __future__ import annotations

import json
from collections.abc import Set as AbstractSet
from typing import cast

import pytest

from flowfabric.store.postgres.driver import Connection, Record


def count_pages(monkeypatch: pytest.MonkeyPatch, mark: str, indexes: AbstractSet[str]) -> list[int]:
    """Grows by the pages that each statement with this mark looks at by way of these indexes."""
    found: list[int] = []
    rightly = Connection.ask

    async def rehearsed(connection: Connection, text: str, *arguments: object) -> list[Record]:
        if mark in text:
            rehearsal = connection.transaction()
            await rehearsal.start()
            how = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}"
            plan = json.loads(await connection.fetchval(how, *arguments))[0]["Plan"]
            found.append(_pages(plan, indexes))
            await rehearsal.rollback()
        return await rightly(connection, text, *arguments)

    monkeypatch.setattr(Connection, "ask", rehearsed)
    return found


def _pages(plan: dict[str, object], indexes: AbstractSet[str]) -> int:
    if plan.get("Index Name") in indexes:
        return cast(int, plan["Shared Hit Blocks"]) + cast(int, plan["Shared Read Blocks"])
    inner = cast(list[dict[str, object]], plan.get("Plans", []))
    return sum(_pages(each, indexes) for each in inner)
