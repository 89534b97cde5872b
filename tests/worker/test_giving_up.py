"""Work that waits for other work gives its slot up, and takes one again before anything new."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from flowfabric import App
from flowfabric.engine import slots as engine_slots
from flowfabric.engine.slots import Slot, Slots, slot_here
from flowfabric.errors import Refused
from tests.app.stage import Gate, running


@pytest.fixture
async def app(app_url: str) -> AsyncIterator[App]:
    app = App(app_url, concurrency=1, drain="5s")
    yield app
    await app.close()


@pytest.fixture
def app_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('slots') / 'app.db'}?synchronous=NORMAL"


async def test_a_parent_that_waits_for_its_child_does_not_keep_its_slot(app: App) -> None:
    @app.task
    async def child(n: int) -> int:
        return n + 1

    @app.task
    async def parent(n: int) -> int:
        first = await (await child.start(n)).result()
        return await (await child.start(first)).result()

    async with running(app):
        assert await (await parent.start(1)).result() == 3


async def test_a_parent_may_wait_for_several_at_once(app: App) -> None:
    @app.task
    async def child(n: int) -> int:
        return n

    @app.task
    async def parent() -> int:
        handles = [await child.start(n) for n in range(5)]
        return sum(await asyncio.gather(*(handle.result() for handle in handles)))

    async with running(app):
        assert await (await parent.start()).result() == 10


async def test_a_parent_may_wait_for_a_flow(app: App) -> None:
    @app.task
    async def child() -> int:
        return 1

    @app.task
    async def parent() -> int:
        graph = app.graph("inner")
        node = graph.add(child)
        run = await graph.submit()
        await run.wait()
        return await run.result(node)

    async with running(app):
        assert await (await parent.start()).result() == 1


async def test_a_worker_runs_no_more_than_its_slots_at_once(app: App) -> None:
    """Two parents come back while the only slot is taken: one after the other."""
    gate = Gate()
    most = now = 0

    @app.task
    async def child() -> None: ...

    @app.task
    async def parent() -> None:
        nonlocal most, now
        await (await child.start()).result()
        now += 1
        most = max(most, now)
        await gate.wait()
        now -= 1

    async with running(app):
        handles = [await parent.start() for _ in range(3)]
        await gate.reached.wait()
        gate.opened.set()
        for handle in handles:
            await handle.result()
    assert most == 1


def slots_of(count: int) -> tuple[Slots, list[int]]:
    """And the room that there was each time somebody heard that there may be some."""
    rooms: list[int] = []
    slots = Slots(count, lambda: rooms.append(slots.room))
    return slots, rooms


def test_what_ends_leaves_room() -> None:
    slots, rooms = slots_of(2)
    first = slots.take()
    slots.take()
    assert slots.room == 0
    first.end()
    assert (slots.room, rooms) == (1, [1])


async def came_back(slots: Slots) -> None:
    """Until one stands at the door of slots that are all taken."""
    while slots.room == 0:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def waiting(slot: Slot, gate: Gate) -> None:
    async with slot.given_up():
        await gate.wait()


async def test_who_comes_back_goes_before_what_is_new() -> None:
    slots, _ = slots_of(1)
    first, gate = slots.take(), Gate()
    wait = asyncio.create_task(waiting(first, gate))
    await gate.reached.wait()
    assert slots.room == 1
    second = slots.take()
    gate.opened.set()
    await came_back(slots)
    assert (slots.room, wait.done()) == (-1, False)
    second.end()
    await wait
    assert slots.room == 0
    first.end()
    assert slots.room == 1


@pytest.mark.parametrize("is_opened", [False, True], ids=["while it waits", "while it comes back"])
async def test_who_is_cancelled_needs_no_room(is_opened: bool) -> None:
    slots, _ = slots_of(1)
    first, gate = slots.take(), Gate()
    wait = asyncio.create_task(waiting(first, gate))
    await gate.reached.wait()
    second = slots.take()
    if is_opened:
        gate.opened.set()
        await came_back(slots)
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
    assert slots.room == -1
    first.end()
    second.end()
    assert slots.room == 1


@pytest.mark.parametrize("is_first", [False, True], ids=["cancelled first", "freed first"])
async def test_a_slot_that_is_freed_in_the_moment_of_a_cancel_is_counted_once(
    is_first: bool,
) -> None:
    slots, _ = slots_of(1)
    first, gate = slots.take(), Gate()
    wait = asyncio.create_task(waiting(first, gate))
    await gate.reached.wait()
    second = slots.take()
    gate.opened.set()
    await came_back(slots)
    if is_first:
        second.end()
    wait.cancel()
    if not is_first:
        second.end()
    with pytest.raises(asyncio.CancelledError):
        await wait
    assert slots.room == 0
    first.end()
    assert slots.room == 1


async def test_what_an_attempt_leaves_behind_has_no_slot() -> None:
    slots, _ = slots_of(1)
    slot, gate = slots.take(), Gate()
    behind = asyncio.create_task(waiting(slot, gate))
    await gate.reached.wait()
    slot.end()
    assert slots.room == 1
    gate.opened.set()
    await behind
    await waiting(slot, gate)
    assert slots.room == 1


async def test_no_more_than_a_bound_wait_in_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_slots, "WAITING_MAX", 1)
    slots, _ = slots_of(2)
    gate = Gate()
    first, second = slots.take(), slots.take()
    wait = asyncio.create_task(waiting(first, gate))
    await gate.reached.wait()
    with pytest.raises(Refused, match="use a flow"):
        await waiting(second, gate)
    assert slots.room == 1
    gate.opened.set()
    await wait
    await waiting(second, gate)
    assert slots.room == 0


async def test_outside_of_a_worker_there_is_no_slot() -> None:
    assert slot_here() is None
