"""The doctor judges progress: what can be done and is not, and what keeps failing.

Nothing that goes wrong keeps it, or a sweep, from the rest.
"""

from __future__ import annotations

import sqlite3

import msgspec
import pytest

from flowfabric.core.flow.views import FlowQuery, Turn
from flowfabric.core.ids import public_id
from flowfabric.core.model import Query, Shift
from flowfabric.core.states import LaneState, State
from flowfabric.engine import round_by_hand
from flowfabric.engine.diagnosis import Diagnosis, Kind
from flowfabric.engine.doctor import CLAIM_GRACE_MS, STALL_GRACE_MS, Doctor
from flowfabric.engine.flow_projector import FlowProjector
from flowfabric.engine.sweeping import Report
from flowfabric.errors import Corrupt
from flowfabric.store import Store
from flowfabric.store.sqlite import SqliteStore
from flowfabric.store.valkey import ValkeyStore
from flowfabric.testing.build import TTL_MS, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.flows import FLOW, plan
from tests.damage.cases import BIG
from tests.damage.spots import raw_client
from tests.flow.desk import FlowDesk
from tests.store.valkey.raw import ask


@pytest.fixture
async def desk(store: Store, clock: VirtualClock) -> FlowDesk:
    desk = FlowDesk(store, clock)
    await desk.engine.open()
    return desk


async def examined(desk: FlowDesk, *, deep: bool = False) -> Diagnosis:
    return await Doctor(desk.store, desk.engine.clock).examine(deep=deep)


async def named(desk: FlowDesk, *, deep: bool = False) -> set[tuple[Kind, str]]:
    return {(each.kind, each.subject) for each in (await examined(desk, deep=deep)).findings}


async def test_a_flow_that_a_dispatcher_holds_and_does_not_move_is_stalled(desk: FlowDesk) -> None:
    """The dispatcher takes it again and again, and fails each time before it writes."""
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    desk.clock.advance(STALL_GRACE_MS)
    now_ms = desk.clock.now_ms()
    await desk.store.pending(Turn(limit=1, now_ms=now_ms, until_ms=now_ms + 60_000))
    assert await named(desk) == set()
    desk.clock.advance(1)
    (found,) = (await examined(desk)).findings
    assert (found.kind, found.subject) == (Kind.STALLED, FLOW)
    assert "a dispatcher holds it" in found.sentence
    desk.clock.advance(60_000)
    await desk.dispatch()
    assert FLOW not in {subject for _, subject in await named(desk)}


async def test_work_that_is_older_than_any_claim_is_stalled(desk: FlowDesk) -> None:
    await desk.submit(order(0))
    desk.clock.advance(CLAIM_GRACE_MS)
    assert await named(desk) == set()
    desk.clock.advance(1)
    await desk.employ()
    (found,) = (await examined(desk)).findings
    assert (found.kind, found.subject) == (Kind.STALLED, "lane main")
    assert found.sentence == ("1 ready of task 'greet', the oldest for 1m, but none is claimed")
    # Work of another task does not help it.
    await desk.submit(order(2, kind="other"))
    await desk.claim(tasks=("other",))
    assert await named(desk) == {(Kind.STALLED, "lane main")}
    # Somebody works: the rest waits its turn.
    await desk.submit(order(1))
    await desk.take(order(1).id)
    assert await named(desk) == set()


async def test_a_lane_that_hands_out_nothing_is_not_stalled(desk: FlowDesk) -> None:
    await desk.submit(order(0))
    await desk.engine.set_lane("main", LaneState.PAUSED)
    desk.clock.advance(CLAIM_GRACE_MS + 1)
    assert await named(desk) == set()


async def test_a_duty_whose_last_cycle_failed_is_named(desk: FlowDesk) -> None:
    now_ms = desk.clock.now_ms()
    report = msgspec.json.encode(Report(last_ms=now_ms, interval_ms=10_000, errors=2)).decode()
    await desk.store.shifts([Shift("flow_projector", "one", now_ms, report)], now_ms)
    (found,) = (await examined(desk)).findings
    assert (found.kind, found.subject) == (Kind.FAILING, "flow_projector")
    assert found.sentence == "its last cycle failed for 2 records; see the log"


async def test_a_part_that_fails_is_found_and_the_rest_is_examined(
    desk: FlowDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.submit(order(0))
    desk.clock.advance(CLAIM_GRACE_MS + 1)

    async def broken(_: object) -> list[object]:
        raise ZeroDivisionError

    monkeypatch.setattr(desk.store, "find_flows", broken)
    assert await named(desk) == {
        (Kind.UNEXAMINED, "flows"),
        (Kind.STALLED, "lane main"),
    }


async def test_a_sweep_goes_on_when_a_duty_fails(
    desk: FlowDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await desk.running(order(0))
    desk.clock.advance(TTL_MS + 1)

    async def broken(_: object) -> object:
        raise ZeroDivisionError("of a duty")

    monkeypatch.setattr(FlowProjector, "run_once", broken)
    done = {each.name: each for each in await round_by_hand.run(desk.engine)}
    assert done["flow_projector"].errors == 1
    assert "of a duty" in done["flow_projector"].problem
    assert done["lease_expiry"].processed == 1
    assert list(done)[-1] == "retention_trimmer"
    assert (await desk.head(lease.id)).state is State.ORPHANED


async def test_a_deep_look_is_content_with_a_sound_store(desk: FlowDesk) -> None:
    await desk.completed(order(0))
    await desk.draw(plan("ab", "a>b"))
    await desk.ended("a")
    await desk.ended("b")
    found = await examined(desk, deep=True)
    assert found.findings == []


async def test_a_deep_look_reads_what_is_over(desk: FlowDesk) -> None:
    await desk.completed(order(0))
    (attempt,) = await desk.attempts(order(0).id)
    async with raw_client(desk.store) as raw:
        assert await raw.remove(attempt)
    assert await named(desk) == set()
    assert await named(desk, deep=True) == {(Kind.UNREADABLE, public_id(order(0).id))}


async def test_a_deep_look_finds_rows_that_belong_to_nobody(desk: FlowDesk) -> None:
    await desk.submit(order(0, payload=BIG))
    async with raw_client(desk.store) as raw:
        if not await raw.remove(await desk.head(order(0).id)):
            return
    subjects = {subject for _, subject in await named(desk, deep=True)}
    match desk.store:
        case SqliteStore():
            assert subjects == {"table payload", "table log"}
        case ValkeyStore():
            assert "the indexes" in subjects
        case _:
            assert subjects == {"table log"}


async def test_a_deep_look_repairs_nothing(desk: FlowDesk) -> None:
    if not isinstance(desk.store, ValkeyStore):
        return
    await desk.submit(order(0))
    key = f"{desk.store.keys.partition(7)}:ids"
    await ask(desk.store, key, "ZADD", key, "0", "nobody")
    for _ in range(2):
        assert await named(desk, deep=True) >= {(Kind.UNREADABLE, "the indexes")}


async def test_a_deep_look_finds_damaged_pages(desk: FlowDesk) -> None:
    if not isinstance(desk.store, SqliteStore):
        return
    await desk.submit(order(0))
    raw = sqlite3.connect(desk.store.path)
    raw.execute("PRAGMA writable_schema = ON")
    raw.execute(
        "UPDATE sqlite_schema SET sql = replace(sql, 'IS NOT NULL', 'IS NULL')"
        " WHERE name = 'execution_purge'"
    )
    raw.commit()
    raw.close()
    assert (Kind.UNREADABLE, "the file") in await named(desk, deep=True)


async def test_an_entry_of_an_index_without_a_record_is_told_of(desk: FlowDesk) -> None:
    if not isinstance(desk.store, ValkeyStore):
        return
    await desk.submit(order(0))
    await desk.draw(plan("ab", "a>b"))
    async with raw_client(desk.store) as raw:
        assert await raw.remove(await desk.flow())
        assert await raw.remove(await desk.head(order(0).id))
    with pytest.raises(Corrupt, match=f"execution {public_id(order(0).id)}.*record is missing"):
        await desk.store.find(Query())
    with pytest.raises(Corrupt, match=f"flow {FLOW}.*record is missing"):
        await desk.store.find_flows(FlowQuery(namespace="another"))
    assert (Kind.UNREADABLE, public_id(order(0).id)) in await named(desk)
