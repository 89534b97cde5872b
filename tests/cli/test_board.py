"""What the demo's board makes of log lines."""

from flowfabric.cli.demo.board import Board, Place
from flowfabric.core.ids import ExecutionId, public_id
from flowfabric.core.model import Event, Value
from flowfabric.core.states import State

ID = ExecutionId("{fp:1}:00000000-0000-7000-8000-000000000001")
OTHER = ExecutionId("{fp:1}:00000000-0000-7000-8000-000000000002")


def line(
    what: str, state: State, detail: dict[str, Value] | None = None, *, id: ExecutionId = ID
) -> Event:
    return Event(
        cursor="life:1",
        execution=id,
        at_ms=1_000,
        kind=what,
        state=state,
        attempt=1,
        epoch=1,
        detail=detail or {},
    )


def claimed(worker: str, kind: str = "initial") -> Event:
    return line("claimed", State.ACTIVE, {"worker": worker, "kind": kind})


def board() -> Board:
    made = Board()
    made.watch({public_id(ID): "render film 1"})
    made.workers = {"host-1": 1, "host-2": 2}
    return made


def test_lines_about_others_are_passed_over() -> None:
    seen = board()
    assert seen.absorb(line("completed", State.COMPLETED, id=OTHER)) is None
    assert dict(seen.counts()) == {State.WAITING: 1}


def test_a_claim_shows_who_works_on_it_until_another_line_comes() -> None:
    seen = board()
    assert seen.absorb(claimed("host-1")) is None
    assert seen.held_by("host-1") == [public_id(ID)]
    told = seen.absorb(line("completed", State.COMPLETED))
    assert told is not None
    assert (told.who, told.what) == ("worker 1", "render film 1 completed")
    assert seen.held_by("host-1") == []
    assert seen.is_over


def test_a_reclaim_is_told_as_taking_over() -> None:
    seen = board()
    seen.absorb(claimed("host-1"))
    lost = seen.absorb(line("lease_expired", State.ORPHANED, {"worker": "host-1"}))
    taken = seen.absorb(claimed("host-2", "reclaim"))
    assert lost is not None
    assert taken is not None
    assert (lost.who, lost.what) == ("worker 1", "the lease of render film 1 ran out")
    assert (taken.who, taken.what) == ("worker 2", "takes over render film 1 as attempt 2")
    assert not seen.is_over


def test_an_ending_is_told_with_its_reason() -> None:
    told = board().absorb(line("failed", State.FAILED, {"reason": "the card was declined"}))
    assert told is not None
    assert told.what == "render film 1 failed: the card was declined"


def test_a_branch_that_is_skipped_is_told_by_nobody() -> None:
    told = board().absorb(line("skipped", State.SKIPPED, {"reason": "dependency_impossible"}))
    assert told is not None
    assert (told.who, told.what) == ("", "render film 1 skipped: dependency_impossible")


def test_the_place_of_an_execution_remembers_its_last_claim() -> None:
    seen = board()
    seen.absorb(claimed("host-1"))
    seen.absorb(line("cancelled", State.CANCELLED, {"reason": "lost the race"}))
    cancelled = Place(State.CANCELLED, "host-1", 1, "lost the race")
    assert seen.places[public_id(ID)] == cancelled
    assert seen.absorb(line("dispatched", State.CANCELLED)) is None
    assert seen.places[public_id(ID)] == cancelled


def test_a_greeting_tells_which_worker_is_which() -> None:
    seen = board()
    seen.greeters[public_id(ID)] = 7
    seen.absorb(claimed("host-9"))
    assert seen.name("host-9") == "worker 7"
