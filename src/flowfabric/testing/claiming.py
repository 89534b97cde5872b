"""Submitting and claiming through a driver, with what must be true of the answers.

What a claim hands out is compared with what the rows say must be handed out: that is how the
index of ready work is judged, without a look inside a store.
"""

from __future__ import annotations

from typing import NamedTuple

from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import Order
from flowfabric.core.model import Execution, Lease
from flowfabric.core.policy import parse_policy
from flowfabric.core.states import CLAIMABLE, LaneState, State
from flowfabric.engine.lanes import REMEMBER_MS
from flowfabric.errors import FlowFabricError, IdempotencyConflict, LaneClosed
from flowfabric.testing.build import TASKS
from flowfabric.testing.driver import Driver, require


class Ask(NamedTuple):
    """What a claim asks for; `again` repeats the claim with the token of that number."""

    lanes: tuple[str, ...]
    tasks: tuple[str, ...] = TASKS
    limit: int = 1
    who: int = 0
    ttl_ms: int = 5_000
    start: bool = True
    only: int | None = None
    again: int | None = None


async def submit(driver: Driver, order: Order) -> object:
    before, now_ms = driver.picture, driver.clock.now_ms()
    lanes = {lane.name: lane.state for lane in before.lanes}
    is_closed = lanes.get(order.lane) in (LaneState.DRAINING, LaneState.DISABLED)
    first = _known(driver, order)
    answers = await driver.do(lambda: driver.engine.submit([order]))
    if isinstance(answers, FlowFabricError):
        return answers
    made = answers[0]
    is_new = first is None and before.row(order.id) is None
    require(isinstance(made.error, LaneClosed) == (is_closed and is_new), f"{made} in {lanes}")
    if not is_new:
        require(made.error is None or isinstance(made.error, IdempotencyConflict), f"{made}")
    if isinstance(made.error, IdempotencyConflict) or made.error is None:
        wanted = (first or order.id, is_new)
        require((made.id, made.created) == wanted, f"{made} for {wanted}")
    if made.error is not None:
        require(before.log == driver.picture.log, f"{made.error} and yet it was written")
    elif made.created and order.key:
        until_ms = now_ms + parse_policy(order.policy).dedup_window_ms
        driver.keys[order.namespace, order.key] = (order.id, until_ms)
    return made.error or made


def _known(driver: Driver, order: Order) -> ExecutionId | None:
    """The execution that this key stands for now."""
    known = driver.keys.get((order.namespace, order.key or ""))
    return known[0] if known and known[1] > driver.clock.now_ms() else None


async def claim(driver: Driver, ask: Ask) -> list[Lease] | FlowFabricError:
    engine, before = driver.engines[ask.who], driver.picture
    only = None if ask.only is None else driver.id(ask.only, CLAIMABLE)
    token, limit = _token(driver, ask)
    serving = await _serving(driver, ask)
    told = await driver.do(
        lambda: engine.claim(
            ask.lanes,
            limit,
            tasks=ask.tasks,
            worker=f"worker-{ask.who}",
            token=token,
            ttl_ms=ask.ttl_ms,
            start=ask.start,
            only=only,
            repeated=ask.again is not None,
        )
    )
    if isinstance(told, FlowFabricError):
        require(only is not None and before.row(only) is None, f"no claim: {told!r}")
        return told
    active = [row for row in before.rows if row.state is State.ACTIVE]
    now_ms = driver.clock.now_ms()
    mine = [r for r in active if r.lease_token == token and (r.lease_until_ms or 0) > now_ms]
    ready = [row for row in before.rows if row.state in CLAIMABLE and row.lane in serving]
    ready = [row for row in ready if row.kind in ask.tasks]
    ready = [row for row in ready if row.namespace == engine.namespace and only in (None, row.id)]
    is_answered = ask.again is not None and mine
    wanted = sorted(mine, key=_place) if is_answered else sorted(ready, key=_place)[:limit]
    handed = [lease.id for lease in told]
    require(handed == [row.id for row in wanted], f"handed out {handed}")
    for lease in told:
        _keep(driver, lease)
    return told


async def _serving(driver: Driver, ask: Ask) -> tuple[str, ...]:
    """The lanes that hand out work. An engine that did not change them hears of it later."""
    known = {lane.name: lane.state for lane in driver.picture.lanes}
    closed = (LaneState.PAUSED, LaneState.DISABLED)
    stored = tuple(name for name in ask.lanes if known.get(name) not in closed)
    if ask.who == 0 or driver.clock.now_ms() >= driver.lanes_since_ms + REMEMBER_MS:
        return stored
    return await driver.engines[ask.who].lanes.serving(ask.lanes)


def _token(driver: Driver, ask: Ask) -> tuple[str, int]:
    if ask.again is not None and driver.tokens:
        return driver.tokens[-1 - ask.again % len(driver.tokens)]
    driver.tokens.append((f"token-{len(driver.tokens)}", ask.limit))
    return driver.tokens[-1]


def _keep(driver: Driver, lease: Lease) -> None:
    """At most one owner for each epoch of each execution, for ever."""
    stored = driver.picture.loaded[lease.id]
    require((lease.head, lease.payload) == (stored.head, stored.payload), f"{lease} is not stored")
    owner = driver.handed.setdefault((lease.id, lease.epoch), lease.token)
    require(owner == lease.token, f"{lease} belongs to {owner}")
    same = [other for other in driver.leases if other.id == lease.id and driver.is_live(other)]
    require(all(other.epoch == lease.epoch for other in same), f"{lease} beside {same}")
    driver.leases.append(lease)


def _place(row: Execution) -> tuple[int, int, str]:
    return (-row.priority, row.created_ms, row.id)
