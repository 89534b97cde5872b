"""While a process works, Python looks for garbage less often; afterwards as before."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from flowfabric.engine.collecting import COLLECTING, RECORDS
from flowfabric.engine.duties import Duties
from flowfabric.engine.engine import Engine
from flowfabric.store.memory import MemoryStore

USUAL = (700, 10, 10)


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process where nobody else works: another test may have died at it."""
    monkeypatch.setattr(COLLECTING, "_needed_by", 0)
    before = gc.get_threshold()
    gc.set_threshold(*USUAL)
    yield
    gc.set_threshold(*before)


@pytest.fixture
async def engine() -> Engine:
    engine = Engine(MemoryStore())
    await engine.open()
    return engine


async def test_it_is_rarer_from_the_first_to_the_last_who_works(engine: Engine) -> None:
    first, second = Duties(engine), Duties(engine)
    first.start()
    second.start()
    assert gc.get_threshold() == (RECORDS, *USUAL[1:])
    await first.stop(1.0)
    assert gc.get_threshold() == (RECORDS, *USUAL[1:])
    await second.stop(1.0)
    assert gc.get_threshold() == USUAL


@pytest.mark.parametrize("young", [0, 3 * RECORDS])
async def test_what_is_off_or_rarer_still_is_left_as_it_is(engine: Engine, young: int) -> None:
    gc.set_threshold(young, 5, 5)
    duties = Duties(engine)
    duties.start()
    assert gc.get_threshold() == (young, 5, 5)
    await duties.stop(1.0)
    assert gc.get_threshold() == (young, 5, 5)


async def test_what_somebody_sets_meanwhile_stays(engine: Engine) -> None:
    duties = Duties(engine)
    duties.start()
    gc.set_threshold(900, 8, 8)
    await duties.stop(1.0)
    assert gc.get_threshold() == (900, 8, 8)
