"""Errors as callers meet them, and how a worker names what went wrong in a task."""

from __future__ import annotations

import pytest

from flowfabric.app import App
from flowfabric.client.handle import Handle
from flowfabric.core.model import Lease
from flowfabric.engine.engine import Engine
from flowfabric.errors import (
    ExecutionFailed,
    FlowFabricError,
    InvalidInput,
    MissingExtra,
    Refused,
    StoreUnavailable,
)
from flowfabric.store import Store
from flowfabric.testing.build import KIND, TTL_MS, order
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb
from flowfabric.worker.idle import Idle
from tests.engine.desk import Desk


@pytest.mark.case("ER-016")
@pytest.mark.parametrize(
    ("error", "is_retryable"),
    [
        (StoreUnavailable("no route to the server"), True),
        (StoreUnavailable("the password is wrong", code="auth"), False),
        (Refused("not now"), False),
        (MissingExtra("not installed"), False),
        (InvalidInput("out of range"), False),
    ],
)
def test_only_trouble_on_the_way_is_worth_trying_again(
    error: FlowFabricError, is_retryable: bool
) -> None:
    assert error.retryable == is_retryable


@pytest.mark.case("ER-020")
def test_a_worker_without_work_rests_longer_up_to_a_limit() -> None:
    idle = Idle(0.1, 2.0)
    pauses = [idle.next() for _ in range(20)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.1, 2.0)
    assert min(pauses) == 0.1
    idle.reset()
    assert idle.next() == 0.1


class Panic(BaseException):
    """What no `except Exception` catches."""


async def outcome(handle: Handle[None]) -> tuple[str, str]:
    with pytest.raises(ExecutionFailed):
        await handle.result(30)
    status = await handle.status()
    return status.outcome_category, status.outcome_detail


@pytest.mark.case("ER-021")
async def test_a_failed_task_says_how_and_why(store: Store) -> None:
    app = App(store=store)

    @app.task
    async def raises() -> None:
        raise RuntimeError("outer") from ValueError("root")

    @app.task
    def panics() -> None:
        raise Panic("out of everything")

    async with app.running():
        told = [
            await outcome(await raises.start()),
            await outcome(await panics.start()),
        ]
    assert told == [("handler_error", "outer: root"), ("handler_panic", "out of everything")]


async def test_trouble_that_passes_is_not_noticed(desk: Desk) -> None:
    """Every verb is tried again; what had been done is not done twice."""
    for kind in (Kind.BEFORE, Kind.AFTER):
        plan = [Fault(verb, 1, kind) for verb in (Verb.INSERT, Verb.CLAIM, Verb.APPLY, Verb.COMMIT)]
        faulty = FaultyStore(desk.store, plan)
        engine = Engine(faulty, clock=desk.clock)
        wanted = order(1 if kind is Kind.BEFORE else 2)
        made = (await engine.submit([wanted]))[0]
        assert made.error is None
        await engine.set_tags(wanted.id, {"demo.tenant": "acme"})
        leases = await engine.claim(
            ["main"], 1, tasks=[KIND], worker="w", token=f"t-{kind}", ttl_ms=TTL_MS
        )
        assert [lease.id for lease in leases] == [wanted.id]
        await engine.complete(leases[0], b"1")
        assert [fault.verb for fault in faulty.hit] == ["insert", "commit", "claim", "apply"]
        assert await desk.history(wanted.id) == ["submitted", "tagged", "claimed", "completed"]


@pytest.mark.parametrize("verb", [Verb.INSERT, Verb.CLAIM, Verb.APPLY, Verb.COMMIT])
async def test_trouble_that_lasts_is_told(desk: Desk, verb: Verb) -> None:
    lease = await desk.running()
    faulty = FaultyStore(desk.store, [Fault(verb, 1, Kind.BEFORE, times=99)])
    engine = Engine(faulty, clock=desk.clock)
    with pytest.raises(StoreUnavailable):
        await _use(engine, lease)
    assert faulty.calls[verb] == 3
    assert (await desk.head(lease.id)).state == "active"


async def _use(engine: Engine, lease: Lease) -> None:
    """Every writing verb of a store, by way of the engine."""
    await engine.submit([order(7)])
    await engine.claim(
        ["main"], 1, tasks=[KIND], worker="w", token="t", ttl_ms=TTL_MS, only=order(7).id
    )
    await engine.renew([lease], TTL_MS)
    await engine.cancel(lease.id)
