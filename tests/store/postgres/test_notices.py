"""Wake-ups between processes: who hears what, and what is heard after a lost connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from flowfabric.core.lifecycle import complete, renew
from flowfabric.store.hints import Hint
from flowfabric.store.postgres import PostgresStore
from flowfabric.store.postgres.notices import FLOWS_MAX, channel_of, hint_of_notice, notice_of
from flowfabric.testing.build import ROUTE, TTL_MS, execution_id, order
from flowfabric.testing.conformance.flow_steps import add_lines, put_flow
from flowfabric.testing.conformance.flows_pending import line
from flowfabric.testing.conformance.steps import apply, put, put_and_take
from flowfabric.testing.flows import FLOW, flow_id, plan
from tests.app.stage import PATIENCE_SECONDS
from tests.store.postgres.desk import Desk, Raw

TWO = (flow_id(1), flow_id(2))
LISTENERS = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE $1"


class Ear:
    """What one store heard; a test waits for what it needs to hear."""

    def __init__(self, store: PostgresStore) -> None:
        self.heard: list[Hint] = []
        self._news = asyncio.Event()
        store.hints.subscribe(self._hear)

    def _hear(self, hint: Hint) -> None:
        self.heard.append(hint)
        self._news.set()

    async def until(self, fits: Callable[[Hint], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not any(map(fits, self.heard)):
                self._news.clear()
                await self._news.wait()

    async def listening(self) -> None:
        """A new connection says that anything may have changed."""
        await self.until(lambda hint: hint.foreign)
        self.heard.clear()


async def heard_by_another(desk: Desk, store: PostgresStore) -> Ear:
    ear = Ear(await desk.opened())
    await ear.listening()
    return ear


@pytest.mark.parametrize(
    ("hint", "there"),
    [
        (Hint(ready=(ROUTE,)), Hint(ready=(ROUTE,))),
        (Hint(due_ms=5), Hint(due_ms=5)),
        (Hint(ready=("a b c", "b"), due_ms=5), Hint(ready=("a b c", "b"), due_ms=5)),
        (Hint(ended=(execution_id(1),)), Hint(foreign=True)),
        (Hint(fenced=(execution_id(1),)), Hint(foreign=True)),
        (Hint(flows=(flow_id(1),)), Hint(foreign=True, flows=(flow_id(1),))),
        (Hint(due_ms=5, flows=TWO), Hint(due_ms=5, foreign=True, flows=TWO)),
        (Hint(flows=tuple(map(flow_id, range(FLOWS_MAX + 1)))), Hint(foreign=True)),
        (Hint(), Hint()),
    ],
)
def test_a_notice_says_what_others_need(hint: Hint, there: Hint) -> None:
    notice = notice_of("me", hint)
    assert bool(notice) == (hint != Hint())
    assert hint_of_notice("you", notice) == there
    assert hint_of_notice("me", notice) == Hint()


@pytest.mark.parametrize("text", ["", "x", "x y", "x r z", "x  ٣", "\0", "a b c d"])
def test_a_notice_of_somebody_else_is_no_trouble(text: str) -> None:
    assert hint_of_notice("me", text).due_ms is None


def test_a_channel_fits_into_an_identifier() -> None:
    assert len(channel_of("a" * 63)) < 63
    assert channel_of("a") != channel_of("b")


async def test_new_work_wakes_another_process(desk: Desk, store: PostgresStore) -> None:
    ear = await heard_by_another(desk, store)
    await put(store, desk.clock, order(0))
    await ear.until(lambda hint: hint.ready == (ROUTE,))


async def test_a_timer_is_told_with_its_instant(desk: Desk, store: PostgresStore) -> None:
    ear = await heard_by_another(desk, store)
    at_ms = desk.clock.now_ms() + 50
    await put(store, desk.clock, order(0, delay_until_ms=at_ms))
    await ear.until(lambda hint: hint.due_ms == at_ms)


async def test_an_end_wakes_who_waits_elsewhere(desk: Desk, store: PostgresStore) -> None:
    lease = await put_and_take(store, desk.clock, order(0))
    ear = await heard_by_another(desk, store)
    await apply(store, desk.clock, complete(lease, desk.clock.now_ms(), b""))
    await ear.until(lambda hint: hint.foreign)


async def test_a_flow_with_something_to_do_is_named_elsewhere(
    desk: Desk, store: PostgresStore
) -> None:
    """What a round wrote, and not only what was submitted."""
    await put_flow(store, desk.clock, plan("ab", "a>b"))
    ear = await heard_by_another(desk, store)
    await add_lines(store, desk.clock, line(1))
    await ear.until(lambda hint: FLOW in hint.flows)


async def test_a_process_does_not_wake_itself(desk: Desk, store: PostgresStore) -> None:
    """What it wrote was said here already; only the other's notice comes over the wire."""
    ear = Ear(store)
    await ear.listening()
    await put(store, desk.clock, order(0))
    await put(await desk.opened(), desk.clock, order(1, delay_until_ms=desk.clock.now_ms() + 7))
    await ear.until(lambda hint: hint.due_ms is not None)
    assert [hint.ready for hint in ear.heard] == [(ROUTE,), ()]


async def test_a_batch_is_one_notice_and_a_renewal_is_none(
    desk: Desk, store: PostgresStore
) -> None:
    raw = await desk.raw()
    heard: list[object] = []
    last = asyncio.Event()

    def hear(_: object, __: int, ___: str, payload: object) -> None:
        heard.append(payload)
        if payload == "last":
            last.set()

    channel = channel_of(desk.schema)
    await raw.add_listener(channel, hear)
    await put(store, desk.clock, *(order(n) for n in range(50)))
    lease = await put_and_take(store, desk.clock, order(60))
    heard.clear()
    await apply(store, desk.clock, renew(lease, desk.clock.now_ms(), TTL_MS))
    await apply(store, desk.clock, complete(lease, desk.clock.now_ms(), b""))
    await put(store, desk.clock, *(order(n) for n in range(100, 150)))
    await (await desk.raw()).execute(f"NOTIFY {channel}, 'last'")
    await last.wait()
    assert len(heard) == 3
    await raw.remove_listener(channel, hear)


def listening(desk: Desk) -> str:
    return f"LISTEN%{channel_of(desk.schema)}%"


async def cut(raw: Raw, query: str) -> int:
    """End the sessions whose last statement was like this."""
    ended = await raw.fetch(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE $1", query
    )
    return len(ended)


async def test_after_a_lost_connection_everything_may_have_changed(
    desk: Desk, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowfabric.store.postgres.notices.PAUSES_SECONDS", (0.0,))
    ear = await heard_by_another(desk, store)
    raw = await desk.raw()
    assert await cut(raw, listening(desk)) == 1
    await ear.listening()
    await put(store, desk.clock, order(0))
    await ear.until(lambda hint: hint.ready == (ROUTE,))


async def test_nobody_listens_behind_a_transaction_pooler(desk: Desk) -> None:
    pooled = await desk.opened("&pooler=transaction")
    ear = Ear(pooled)
    await put(pooled, desk.clock, order(0))
    assert [hint.ready for hint in ear.heard] == [(ROUTE,)]
    raw = await desk.raw()
    assert await raw.fetchval(LISTENERS, listening(desk)) == 0


async def test_a_store_that_nobody_listens_to_does_not_listen(
    desk: Desk, store: PostgresStore
) -> None:
    raw = await desk.raw()
    assert await raw.fetchval(LISTENERS, listening(desk)) == 0
    await store.close()
