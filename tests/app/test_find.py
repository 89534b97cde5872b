"""`app.find`: executions by conditions, listed, counted and changed; and the other listings."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from flowfabric import App, Call, Changed, InvalidInput, PublicState
from flowfabric.client import finding
from flowfabric.core.states import LaneState
from flowfabric.errors import ExecutionNotActive, Refused
from tests.app.stage import running


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "PAGE", 3)


async def filled(app: App) -> dict[str, list[str]]:
    """Work of two tasks in two lanes, some delayed, some tagged; answers ids by what they are."""

    @app.task
    async def add(a: int) -> int:
        return a

    @app.task(lane="mail")
    async def send(text: str) -> str:
        return text

    delayed = add.options(delay="1h", tags={"shop.tenant": "acme"})
    calls: dict[str, Sequence[Call[object]]] = {
        "add": [add.bind(n) for n in range(4)],
        "later": [delayed.bind(n) for n in range(4)],
        "send": [send.bind("hello")],
    }
    return {
        name: sorted(handle.id for handle in await app.start_many(some))
        for name, some in calls.items()
    }


async def found(app: App, **conditions: object) -> list[str]:
    return sorted([each.id async for each in app.find(**conditions)])  # type: ignore[arg-type]


async def test_every_condition_narrows_what_is_found(app: App) -> None:
    made = await filled(app)
    everything = sorted(id for ids in made.values() for id in ids)
    assert await found(app) == everything
    assert await found(app, task="add") == sorted(made["add"] + made["later"])
    assert await found(app, task="add", state="delayed") == made["later"]
    assert await found(app, state=[PublicState.WAITING, "delayed"]) == everything
    assert await found(app, lane="mail") == made["send"]
    assert await found(app, tags={"shop.tenant": "acme"}) == made["later"]
    assert await found(app, since="1h") == everything
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert await found(app, since=tomorrow) == []
    assert await found(app, since=tomorrow - timedelta(days=2), lane="mail") == made["send"]
    assert await app.find(task="add").count() == 8
    assert [each.id for each in await app.find(lane="mail")] == made["send"]
    (sent,) = await app.find(lane="mail")
    assert (sent.kind, sent.public_state, sent.tags) == ("send", PublicState.WAITING, {})


async def test_members_of_a_flow_are_found(app: App) -> None:
    @app.task
    async def number(n: int) -> int:
        return n

    g = app.graph("sums")
    nodes = [g.add(number, n) for n in range(4)]
    await number.start(9)
    run = await g.submit()
    assert await found(app, flow=run.id) == sorted(node.id for node in nodes)
    assert await app.find(flow=run.id, state="waiting").count() == 4


async def test_bulk_verbs_change_what_matches_and_say_how_many(app: App) -> None:
    made = await filled(app)
    seen: list[int] = []
    assert await app.find(state="delayed").cancel(progress=seen.append) == 4
    assert seen[-1] == 4
    assert seen == sorted(seen)
    assert len(seen) > 1
    assert await app.find(state="delayed").cancel() == 0
    assert await found(app, state="cancelled") == made["later"]
    assert await app.find(state="cancelled").replay() == 4
    assert await found(app, state="cancelled") == []
    assert await app.find(task="add").cancel("enough") == 8
    assert await app.find(task="add").purge() == 8
    assert await found(app) == made["send"]


@pytest.mark.parametrize("verb", ["cancel", "replay", "purge"])
async def test_a_bulk_verb_without_a_condition_asks_whether_that_is_meant(
    app: App, verb: str
) -> None:
    await filled(app)
    with pytest.raises(InvalidInput, match="without a condition") as refused:
        await getattr(app.find(), verb)()
    assert refused.value.field == "everything"
    assert await app.find(state="waiting").count() == 5
    assert await getattr(app.find(), verb)(everything=True) == (9 if verb == "cancel" else 0)


async def test_a_replay_must_say_which_states_it_means(app: App) -> None:
    await filled(app)
    await app.find(task="add").cancel()
    with pytest.raises(InvalidInput, match="completed executions") as refused:
        await app.find(task="add").replay()
    assert refused.value.field == "state"
    assert await app.find(task="add", state="cancelled").replay() == 8


async def test_what_cannot_be_purged_is_named_with_why(app: App) -> None:
    @app.task
    async def number(n: int) -> int:
        return n

    g = app.graph("sums")
    node = g.add(number, 1)
    async with running(app):
        run = await g.submit()
        await run.wait()
        alone = await number.start(2)
        keyed = await number.options(idempotency_key="once").start(3)
        assert [await each.result() for each in (alone, keyed)] == [2, 3]
        changed = await app.find(state="completed").purge()
    assert isinstance(changed, Changed)
    assert changed == 1
    assert sorted(changed.refused) == sorted([node.id, keyed.id])
    assert all(isinstance(error, Refused) for error in changed.refused.values())
    assert "member of flow" in str(changed.refused[node.id])
    assert "idempotency key" in str(changed.refused[keyed.id])
    assert await found(app) == sorted([node.id, keyed.id])


async def test_lanes_show_state_depth_and_age(app: App) -> None:
    await filled(app)
    await app.engine.set_lane("mail", LaneState.PAUSED)
    lanes = {lane.name: lane for lane in await app.lanes()}
    assert {name: (lane.state, lane.ready) for name, lane in lanes.items()} == {
        "default": (LaneState.ACTIVE, 4),
        "mail": (LaneState.PAUSED, 1),
    }
    oldest = min([each.created_ms async for each in app.find(state="waiting", lane="default")])
    assert lanes["default"].oldest_ms == oldest
    assert not lanes["default"].is_more
    assert await app.lanes().count() == 2


async def test_handles_pause_resume_and_wait(app: App) -> None:
    @app.task
    async def number(n: int) -> int:
        return n

    handle = await number.start(1)
    assert await handle.pause("ask first") is PublicState.WAITING
    assert await handle.pause("ask first") is PublicState.WAITING
    async with running(app):
        other = await number.start(2)
        assert (await other.wait()).public_state is PublicState.COMPLETED
        assert (await handle.status()).public_state is PublicState.WAITING
        await handle.resume()
        await handle.resume()
        assert await handle.result(timeout="60s") == 1
        with pytest.raises(ExecutionNotActive):
            await handle.pause()
        assert await handle.replay() is not PublicState.COMPLETED
        assert (await handle.wait(timeout=60)).replay_count == 1


@pytest.mark.parametrize(
    ("conditions", "field"),
    [
        ({"state": "melted"}, "state"),
        ({"state": []}, "state"),
        ({"lane": "a\nb"}, "lane"),
        ({"since": "soon"}, "since"),
        ({"since": datetime(2030, 1, 1)}, "since"),  # noqa: DTZ001
        ({"flow": "nonsense"}, "flow_id"),
    ],
)
def test_a_condition_that_cannot_be_is_refused(
    app: App, conditions: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        app.find(**conditions)  # type: ignore[arg-type]
    assert refused.value.field == field
