"""What is to be written, split into calls that a store takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.model import Writer
from flowfabric.core.transition import BATCH_LIMIT, Held, Transition
from flowfabric.engine.waves import waves
from flowfabric.testing.build import execution_id


def about(*numbers: int) -> list[Transition]:
    return [
        Transition(execution_id(number), Held(1, "t"), Writer.WORKER, {"renewed_ms": 1})
        for number in numbers
    ]


def test_different_records_go_together() -> None:
    assert waves([]) == []
    assert waves(about(3, 1, 2)) == [[0, 1, 2]]


def test_a_second_change_of_a_record_goes_into_the_next_call() -> None:
    assert waves(about(1, 2, 1, 3, 1)) == [[0, 1, 3], [2], [4]]


def test_a_call_has_a_limit() -> None:
    sizes = [len(wave) for wave in waves(about(*range(2 * BATCH_LIMIT + 1)))]
    assert sizes == [BATCH_LIMIT, BATCH_LIMIT, 1]
    doubled = waves(about(0, *range(BATCH_LIMIT + 5)))
    assert [len(wave) for wave in doubled] == [BATCH_LIMIT, 6]


@given(st.lists(st.integers(0, 5), max_size=40))
def test_every_change_goes_out_once_and_in_order_for_its_record(numbers: list[int]) -> None:
    transitions = about(*numbers)
    calls = waves(transitions)
    assert sorted(position for call in calls for position in call) == list(range(len(numbers)))
    for call in calls:
        assert len({transitions[position].id for position in call}) == len(call)
    for number in set(numbers):
        sent = [position for call in calls for position in call if numbers[position] == number]
        assert sent == sorted(sent)
