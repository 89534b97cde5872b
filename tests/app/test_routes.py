"""Two programs with different tasks on one store and one lane: each runs its own work, and nobody
touches what it does not know."""

from __future__ import annotations

import pytest

from flowfabric import App, ExecutionFailed
from flowfabric.core.states import PublicState
from flowfabric.store import Store
from tests.app.stage import eventually, kinds, running


class Shop:
    def __init__(self, store: Store) -> None:
        self.app = App(store=store)

        @self.app.task
        async def charge(order: int) -> str:
            return f"charged {order}"

        @self.app.task
        async def broken() -> None:
            raise RuntimeError("out of paper")

        self.charge, self.broken = charge, broken


class Post:
    def __init__(self, store: Store) -> None:
        self.app = App(store=store)

        @self.app.task
        async def mail(order: int) -> str:
            return f"mailed {order}"

        @self.app.task
        async def tally() -> int:
            return 1

        self.mail, self.tally = mail, tally


async def test_two_programs_in_one_lane_leave_each_others_work_alone(store: Store) -> None:
    first, second = Shop(store), Post(store)
    mailed = [await second.mail.start(number) for number in range(20)]
    charged = [await first.charge.start(number) for number in range(20)]
    async with running(first.app):
        assert [await handle.result() for handle in charged] == [
            f"charged {number}" for number in range(20)
        ]
        states = {(await handle.status()).public_state for handle in mailed}
        assert states == {PublicState.WAITING}
        async with running(second.app):
            assert [await handle.result() for handle in mailed] == [
                f"mailed {number}" for number in range(20)
            ]
            for handle in (*mailed, *charged):
                assert await kinds(handle) == ["submitted", "claimed", "completed"]


async def test_work_of_a_task_that_nobody_knows_waits_until_somebody_does(store: Store) -> None:
    """A deploy that lacks a task for a while fails nothing of it."""
    old, new = Shop(store), Post(store)
    handle = await new.mail.start(7)
    async with running(old.app):
        with pytest.raises(ExecutionFailed):
            await (await old.broken.start()).result()
        assert (await handle.status()).public_state is PublicState.WAITING
        async with running(new.app):
            assert await handle.result() == "mailed 7"
            assert await kinds(handle) == ["submitted", "claimed", "completed"]


async def test_a_member_of_a_flow_goes_to_who_knows_its_task(store: Store) -> None:
    """Who ends a member is not handed the next one, if it does not know its task."""
    first, second = Shop(store), Post(store)
    graph = first.app.graph("order")
    paid = graph.add(first.charge, 1)
    sent = graph.add(second.tally, after=[paid])
    async with running(first.app):
        run = await graph.submit()
        assert await run.result(paid) == "charged 1"
        await eventually(lambda: is_waiting(first.app, sent.id))
        async with running(second.app):
            assert await run.result(sent) == 1


async def is_waiting(app: App, id: str) -> bool:
    found = await app.engine.read.describe(id)
    return found is not None and found.public_state is PublicState.WAITING


async def test_a_task_that_comes_to_be_known_while_a_worker_runs_is_served(store: Store) -> None:
    shop = Shop(store)
    async with running(shop.app):
        assert await (await shop.charge.start(1)).result() == "charged 1"

        @shop.app.task
        async def late() -> int:
            return 2

        assert await (await late.start()).result() == 2
