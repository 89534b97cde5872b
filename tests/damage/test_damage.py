"""Damage to any column of any record: every read tells of it or answers the truth, every sweeper
goes on, and all other work on the same store does too."""

from __future__ import annotations

import pytest

from flowfabric.core.flow.model import Flow
from flowfabric.core.model import Event, Execution
from flowfabric.core.states import State
from flowfabric.engine.doctor import Doctor
from flowfabric.engine.janitor import Janitor, Shed
from flowfabric.errors import Corrupt
from flowfabric.printing import with_public_ids
from flowfabric.store import Store
from flowfabric.testing.build import order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.flows import flow_id, plan
from tests.conftest import Size
from tests.damage.cases import MAKERS, NAMES, Case, Damage, Subject, every_case, is_sound, spoil
from tests.damage.reads import Answers, ask_all, lies, name_of
from tests.damage.spots import Key, Tag, raw_client
from tests.flow.desk import FlowDesk

SOUND = range(100_000, 100_003)
ROUNDS = 3
Damaged = dict[Case, tuple[Subject, Answers]]


@pytest.fixture
async def desk(store: Store, clock: VirtualClock) -> FlowDesk:
    desk = FlowDesk(store, clock)
    await desk.engine.open()
    return desk


async def damaged(desk: FlowDesk, size: Size) -> Damaged:
    """One subject for each case, damaged, with what its reads answered before."""
    made: Damaged = {}
    for number, case in enumerate(every_case(sampled=size == "small"), 1):
        subject = await MAKERS[case.kind][case.shape](desk, number)
        made[case] = subject, await ask_all(desk, subject)
    async with raw_client(desk.store) as raw:
        done = {case: each for case, each in made.items() if await spoil(raw, case, each[0])}
    # A client that damages nothing would find nothing.
    assert len(done) * 6 > len(made)
    return done


@pytest.mark.lab
async def test_every_read_tells_of_damage_or_answers_the_truth(desk: FlowDesk, size: Size) -> None:
    wrong: list[str] = []
    for case, (subject, before) in (await damaged(desk, size)).items():
        after = await ask_all(desk, subject)
        if is_sound(case, subject.spot) or _is_lost(case):
            continue
        wrong += [f"{case}: {lie}" for lie in lies(before, after)]
        for name, told in after.items():
            if isinstance(told, Corrupt) and not _names(told, case, subject):
                wrong.append(f"{case}: {name} does not name it: {told}")
    assert not wrong, "\n".join(wrong)


def _is_lost(case: Case) -> bool:
    """Nothing is left that names the record."""
    is_gone = case.damage is Damage.GONE and case.kind in (Execution, Flow, Tag, Key, Event)
    return is_gone or case.column in NAMES.get(case.kind, ())


def _names(told: Corrupt, case: Case, subject: Subject) -> bool:
    where = (name_of(subject.spot), subject.execution, str(subject.flow))
    column = f"column {case.column}:" in str(told) or f".{case.column}:" in str(told)
    is_missing = "missing" in str(told)
    return any(with_public_ids(each) in str(told) for each in where) and (column or is_missing)


@pytest.mark.lab
async def test_damage_stops_nothing_else(desk: FlowDesk, size: Size) -> None:
    for number in SOUND:
        await desk.submit(order(number))
    flow = flow_id(SOUND[0])
    await desk.draw(plan("abc", "a>b b>c", flow=flow))
    await damaged(desk, size)
    janitor = Janitor(Shed(desk.store, desk.engine.clock, desk.dispatcher.counts))
    for _ in range(ROUNDS):
        await desk.sweep()
        await desk.dispatch()
        await janitor.run_once()
        for sweeper in janitor.sweepers:
            await sweeper._round()
        await _work(desk)
        desk.clock.advance(60_000)
    found = await Doctor(desk.store, desk.engine.clock).examine()
    assert not found.is_well
    for number in SOUND:
        assert (await desk.head(order(number).id)).state is State.COMPLETED
    assert await desk.states("abc", flow) == dict.fromkeys("abc", "completed")
    # And what is new goes on as well.
    await desk.submit(order(SOUND[-1] + 1))
    await _work(desk)
    assert (await desk.head(order(SOUND[-1] + 1).id)).state is State.COMPLETED


async def _work(desk: FlowDesk) -> None:
    """Claim and complete until nothing is left; an input that is gone is told of."""
    while True:
        try:
            leases = await desk.claim(50)
        except Corrupt:
            continue
        if not leases:
            return
        for lease in leases:
            await desk.engine.complete(lease, b"1")
        await desk.dispatch()
