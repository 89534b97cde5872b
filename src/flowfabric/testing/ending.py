"""The end of every story: each execution gets what it says it waits for, until all are over.

An execution that lies for ever is what an engine must never have. Here it is looked for in the
plainest way: do what `explain` names, and nothing else, and see whether everything finishes.
"""

from __future__ import annotations

from functools import partial

from flowfabric.core.explain import explain
from flowfabric.core.model import Execution, Query
from flowfabric.core.states import TERMINAL, LaneState
from flowfabric.engine.lanes import REMEMBER_MS
from flowfabric.testing.claiming import Ask, claim
from flowfabric.testing.driver import ROUNDS_MAX, Broken, Driver, require
from flowfabric.testing.holding import hold
from flowfabric.testing.invariants import broken_promises
from flowfabric.testing.picture import ALL, Picture


async def finish_everything(driver: Driver) -> None:
    """Open the lanes, then serve timers, operators' blocks and workers, round by round."""
    lying = await broken_promises(driver.store, driver.clock.now_ms())
    require(not lying, f"nothing will wake them: {lying}")
    for lane in driver.picture.lanes:
        await driver.set_lane(lane.name, LaneState.ACTIVE)
    # By then every engine has heard of it.
    driver.clock.advance(REMEMBER_MS)
    for _ in range(ROUNDS_MAX):
        await driver.pass_time()
        await driver.sweep_all()
        waiting = [row for row in driver.picture.rows if row.state not in TERMINAL]
        if not waiting:
            await compare_finds(driver)
            return
        await _serve(driver, waiting)
    raise Broken(f"never over: {[row for row in driver.picture.rows if row.state not in TERMINAL]}")


async def _serve(driver: Driver, waiting: list[Execution]) -> None:
    said = [(row, explain(row, driver.clock.now_ms())) for row in waiting]
    for row, why in said:
        if why.wakes == "operator":
            await driver.do(partial(driver.engine.unblock, row.id))
    if any(why.wakes == "worker" for _, why in said):
        await _work(driver, tuple(dict.fromkeys(row.lane for row in waiting)))
        return
    later = [why.until_ms for _, why in said if why.wakes in ("timer", "lease")]
    driver.clock.set(max(driver.clock.now_ms(), min((at for at in later if at), default=0)))


async def _work(driver: Driver, lanes: tuple[str, ...]) -> None:
    """Take all there is and complete it, as the last worker in the world."""
    for who in range(len(driver.engines)):
        leases = await claim(driver, Ask(lanes, limit=500, who=who))
        for lease in leases if isinstance(leases, list) else []:
            await hold(driver, lease, lambda held: driver.engine.complete(held, b"at last"))


async def compare_finds(driver: Driver) -> None:
    """Whatever can be asked for is answered as the rows say."""
    for row in driver.picture.rows:
        tags = driver.picture.loaded[row.id].tags
        for query in (
            Query(states=(row.state,), limit=ALL),
            Query(lane=row.lane, namespace=row.namespace, limit=ALL),
            Query(tags=tags, kind=row.kind, limit=ALL),
        ):
            found = await driver.store.find(query)
            require(found == _fitting(driver.picture, query), f"{query} finds {found}")


def _fitting(picture: Picture, query: Query) -> list[Execution]:
    return [
        loaded.head
        for loaded in picture.loaded.values()
        if (not query.states or loaded.head.state in query.states)
        and query.lane in (None, loaded.head.lane)
        and query.kind in (None, loaded.head.kind)
        and query.namespace in (None, loaded.head.namespace)
        and query.tags.items() <= loaded.tags.items()
    ]
