"""Values that cannot be right, given to the verbs directly: refused by name, or made storable.

Every store answers the same, one bad value spoils no other call, and every row stays readable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

import msgspec
import pytest

from flowfabric.app import App
from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import Failure
from flowfabric.core.model import Feed, Lease, Query
from flowfabric.core.names import BODY_BYTES_MAX
from flowfabric.core.operator import ExpireReason
from flowfabric.core.states import Reason, State
from flowfabric.core.transition import DETAIL_LIMIT
from flowfabric.engine.outcomes import Completed, Delayed, Failed
from flowfabric.errors import InvalidInput, PayloadTooLarge
from flowfabric.testing.build import KIND, TTL_MS, order
from flowfabric.testing.flows import FLOW
from tests.engine.desk import Desk

TEXTS = {"a lone surrogate": "a\ud800b", "a NUL": "a\0b", "far too long": "ü" * 100_000}
STORED = {"a lone surrogate": "a?b", "a NUL": "a\ufffdb"}
NO_INSTANT = [-5, 2**63, 2**70, 1.5, True, "soon"]

Say = Callable[[Desk, Lease, str], Awaitable[object]]

SAY: dict[str, Say] = {
    "cancel": lambda desk, lease, text: desk.engine.cancel(lease.id, text),
    "revoke": lambda desk, lease, text: desk.engine.revoke(lease.id, text),
    "fail": lambda desk, lease, text: desk.engine.fail(lease, Failure(text)),
    "progress": lambda desk, lease, text: desk.engine.progress(lease, 1, text),
}


BARE = ExecutionId("018f0c2e-7b1a-7c3d-8e4f-5a6b7c8d9e0f")
ENTRIES: dict[str, Callable[[Desk], Awaitable[object]]] = {
    "adopt": lambda desk: desk.engine.adopt(BARE),
    "attempts": lambda desk: desk.engine.read.attempts(BARE),
    "block": lambda desk: desk.engine.block(BARE, Reason.PAUSED_BY_OPERATOR),
    "cancel": lambda desk: desk.engine.cancel(BARE),
    "change_priority": lambda desk: desk.engine.change_priority(BARE, 5),
    "claim": lambda desk: desk.claim(only=BARE),
    "describe": lambda desk: desk.engine.read.describe(BARE),
    "eligibility": lambda desk: desk.engine.read.eligibility(BARE),
    "events": lambda desk: desk.engine.read.events(Feed(execution=BARE)),
    "expire": lambda desk: desk.engine.expire(BARE, ExpireReason.EXECUTION_DEADLINE),
    "explain": lambda desk: desk.engine.read.explain(BARE),
    "handle": lambda desk: App(store=desk.store).handle(BARE).status(),
    "join": lambda desk: desk.engine.flows.build.join(FLOW, BARE),
    "load": lambda desk: desk.engine.read.load(BARE),
    "pause": lambda desk: desk.engine.pause(BARE),
    "purge": lambda desk: desk.engine.purge(BARE),
    "replay": lambda desk: desk.engine.replay(BARE),
    "result": lambda desk: desk.engine.read.result(BARE),
    "resume": lambda desk: desk.engine.resume(BARE),
    "revoke": lambda desk: desk.engine.revoke(BARE),
    "set_tags": lambda desk: desk.engine.set_tags(BARE, {"a.b": "c"}),
    "state": lambda desk: desk.engine.read.state(BARE),
    "tags": lambda desk: desk.engine.read.tags(BARE),
}


@pytest.mark.case("PA-009")
@pytest.mark.parametrize("entry", ENTRIES)
async def test_a_bare_uuid_is_refused_at_every_entry(desk: Desk, entry: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await ENTRIES[entry](desk)
    assert (refused.value.code, refused.value.field) == ("missing_tag", "execution_id")


@pytest.mark.case("PA-009")
async def test_nothing_is_submitted_under_a_bare_uuid(desk: Desk) -> None:
    refused = (await desk.engine.submit([order(0, id=BARE)]))[0].error
    assert refused is not None
    assert (refused.code, refused.field) == ("missing_tag", "execution_id")


def number(value: object) -> int:
    """What somebody without a type checker might pass."""
    return cast(int, value)


@pytest.mark.parametrize("verb", SAY)
@pytest.mark.parametrize("kind", TEXTS)
async def test_what_people_say_is_made_storable(desk: Desk, verb: str, kind: str) -> None:
    lease = await desk.running()
    await SAY[verb](desk, lease, TEXTS[kind])
    snapshot = await desk.snapshot(lease.id)
    told = snapshot.progress_message if verb == "progress" else snapshot.outcome_detail
    assert told is not None
    assert told == STORED.get(kind, told)
    assert 0 < len(told.encode()) <= DETAIL_LIMIT


@pytest.mark.parametrize("kind", TEXTS)
async def test_what_the_log_keeps_is_made_storable(desk: Desk, kind: str) -> None:
    id = await desk.completed()
    await desk.engine.replay(id, TEXTS[kind])
    await desk.engine.block(id, Reason.PAUSED_BY_OPERATOR, detail=TEXTS[kind])
    replayed, blocked = (await desk.events(id))[-2:]
    told = [replayed.detail["reason"], blocked.detail["detail"]]
    assert told == [STORED.get(kind, told[0])] * 2
    assert all(len(str(text).encode()) <= DETAIL_LIMIT for text in told)


@pytest.mark.parametrize("kind", TEXTS)
async def test_a_category_is_made_storable(desk: Desk, kind: str) -> None:
    lease = await desk.running()
    await desk.engine.fail(lease, Failure("broke", TEXTS[kind]))
    category = (await desk.snapshot(lease.id)).outcome_category
    assert category == STORED.get(kind, category)
    assert 0 < len(category.encode()) <= 64


@pytest.mark.parametrize("kind", TEXTS)
async def test_names_of_a_claim_are_refused(desk: Desk, kind: str) -> None:
    text = TEXTS[kind]
    for lanes, worker, token, field in (
        ([text], "w", "t", "lane"),
        (["main"], text, "t", "worker"),
        (["main"], "w", text, "token"),
    ):
        with pytest.raises(InvalidInput) as refused:
            await desk.engine.claim(
                lanes, 1, tasks=[KIND], worker=worker, token=token, ttl_ms=TTL_MS
            )
        assert refused.value.field == field


@pytest.mark.parametrize("field", ["namespace", "lane", "kind", "creator", "digest", "key"])
@pytest.mark.parametrize("kind", TEXTS)
async def test_texts_of_an_order_are_refused_by_name(desk: Desk, field: str, kind: str) -> None:
    changes = {"key": "k", field: TEXTS[kind]}
    bad = msgspec.structs.replace(order(1), **changes)
    refused, made = await desk.engine.submit([bad, order(2)])
    assert isinstance(refused.error, InvalidInput)
    assert refused.error.field == {"kind": "task", "key": "idempotency_key"}.get(field, field)
    assert made.created
    assert len((await desk.engine.read.find(Query())).items) == 1


@pytest.mark.parametrize("value", NO_INSTANT)
@pytest.mark.parametrize("field", ["delay_until_ms", "deadline_ms"])
async def test_instants_of_an_order_are_refused_by_name(
    desk: Desk, field: str, value: object
) -> None:
    bad = msgspec.structs.replace(order(1), **{field: value})
    refused, made = await desk.engine.submit([bad, order(2)])
    assert isinstance(refused.error, InvalidInput)
    assert str(refused.error.field) in field
    assert made.created


@pytest.mark.parametrize("value", NO_INSTANT)
async def test_a_delay_until_no_instant_is_refused(desk: Desk, value: object) -> None:
    await desk.engine.submit([order(1), order(2)])
    bad, good = await desk.claim(limit=2)
    refused, done = await desk.engine.finish([Delayed(bad, number(value)), Completed(good, b"1")])
    assert isinstance(refused.error, InvalidInput)
    assert refused.error.field == "until_ms"
    assert (done.error, done.state) == (None, State.COMPLETED)
    assert (await desk.head(bad.id)).state is State.ACTIVE


@pytest.mark.parametrize("value", [4_999, 2**63, 2**70, 5_000.5, True, "5s"])
async def test_a_lease_lasts_whole_milliseconds_within_bounds(desk: Desk, value: object) -> None:
    lease = await desk.running()
    for call in (
        desk.engine.renew([lease], number(value)),
        desk.engine.claim(["main"], 1, tasks=[KIND], worker="w", token="t", ttl_ms=number(value)),
    ):
        with pytest.raises(InvalidInput) as refused:
            await call
        assert refused.value.field == "ttl_ms"


@pytest.mark.parametrize("value", [-1, 101, 33.3, True, "5", 2**70])
async def test_a_percentage_is_a_whole_number(desk: Desk, value: object) -> None:
    lease = await desk.running()
    with pytest.raises(InvalidInput) as refused:
        await desk.engine.progress(lease, number(value))
    assert refused.value.field == "pct"
    assert (await desk.snapshot(lease.id)).progress_pct is None


async def test_a_body_is_bytes_within_a_limit(desk: Desk) -> None:
    class_of: dict[object, type[InvalidInput] | type[PayloadTooLarge]] = {
        "text": InvalidInput,
        None: InvalidInput,
        b"x" * (BODY_BYTES_MAX + 1): PayloadTooLarge,
    }
    for body, kind in class_of.items():
        bad = msgspec.structs.replace(order(1), payload=body)
        refused = (await desk.engine.submit([bad]))[0]
        assert isinstance(refused.error, kind)
        assert refused.error.field == "payload"
    lease = await desk.running(order(2, payload=b"x" * BODY_BYTES_MAX))
    for body, kind in class_of.items():
        with pytest.raises(kind) as too_bad:
            await desk.engine.complete(lease, cast(bytes, body))
        assert too_bad.value.field == "result"
    await desk.engine.complete(lease, b"y" * BODY_BYTES_MAX)
    assert await desk.engine.read.result(lease.id) == b"y" * BODY_BYTES_MAX


async def test_one_strange_failure_spoils_no_other_outcome(desk: Desk) -> None:
    await desk.engine.submit([order(1), order(2)])
    strange, good = await desk.claim(limit=2)
    answers = await desk.engine.finish(
        [Failed(strange, Failure(TEXTS["a lone surrogate"])), Completed(good, b"1")]
    )
    assert [answer.error for answer in answers] == [None, None]


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_page_of_nothing_is_empty(desk: Desk, limit: int) -> None:
    await desk.submit()
    read = desk.engine.read
    assert await read.events(Feed(limit=limit)) == []
    assert (await read.find(Query(limit=limit))).items == []
    assert (await read.list_lanes(limit=limit)).items == []


async def test_a_page_has_a_limit_of_its_own(desk: Desk) -> None:
    await desk.submit()
    read = desk.engine.read
    assert len(await read.events(Feed(limit=2**70))) == 1
    assert len((await read.find(Query(limit=2**70))).items) == 1
    assert len((await read.list_lanes(limit=2**70)).items) == 1


async def test_a_shorter_renewal_does_not_shorten_the_lease(desk: Desk) -> None:
    lease = await desk.running()
    renewed = (await desk.engine.renew([lease], 5_000))[0].lease
    assert renewed.until_ms == lease.until_ms == (await desk.head(lease.id)).lease_until_ms
