"""Renewals go before what is queued: a lease must not be lost to a busy store."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from flowfabric.core.lifecycle import renew
from flowfabric.core.transition import Applied, Rejected, Transition
from flowfabric.store.hints import Hint
from flowfabric.store.sqlite import SqliteStore
from flowfabric.store.sqlite.writer import Writer
from flowfabric.testing.build import TTL_MS, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import put, take
from flowfabric.testing.faults import FaultyStore
from tests.engine.desk import VERBS, Desk


class Noting(FaultyStore):
    """Keeps which calls were urgent."""

    urgent: tuple[bool, ...] = ()

    async def apply(
        self, transitions: Sequence[Transition], now_ms: int, *, urgent: bool = False
    ) -> list[Applied | Rejected]:
        self.urgent += (urgent,)
        return await super().apply(transitions, now_ms, urgent=urgent)


async def test_only_a_renewal_is_urgent(desk: Desk) -> None:
    said: dict[str, tuple[bool, ...]] = {}
    for number, verb in enumerate(VERBS):
        lease = await desk.running(order(number))
        noting = Noting(desk.store)
        await VERBS[verb](Desk(noting, desk.clock), lease)
        said[verb] = noting.urgent
    assert said.pop("renew") == (True,)
    assert set(said.values()) == {(False,)}


@pytest.mark.parametrize("is_urgent", [True, False])
async def test_a_sqlite_file_is_told_what_is_urgent(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, *, is_urgent: bool
) -> None:
    """`test_urgent_works_go_first` shows what its writer makes of it."""
    store = SqliteStore(str(tmp_path / "store.db"), synchronous="NORMAL", clock=clock)
    await store.migrate()
    await put(store, clock, order(0))
    (lease,) = await take(store, clock)
    told: list[bool] = []
    rightly = Writer.submit

    def submit(
        writer: Writer,
        run: Callable[[sqlite3.Connection], object],
        *,
        rows: int = 1,
        urgent: bool = False,
        passing: bool = False,
        hint: Hint,
    ) -> Future[object]:
        told.append(urgent)
        return rightly(writer, run, rows=rows, urgent=urgent, passing=passing, hint=hint)

    monkeypatch.setattr(Writer, "submit", submit)
    now_ms = clock.now_ms()
    renewal = renew(lease, now_ms, TTL_MS)
    (answer,) = await store.apply([renewal], now_ms, urgent=is_urgent)
    assert isinstance(answer, Applied)
    assert told == [is_urgent]
    await store.close()
