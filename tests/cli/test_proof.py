"""The closing proof believes the store alone, and says what is missing."""

import io
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowfabric.cli.demo.flow_proof import FlowProof, Member
from flowfabric.cli.demo.notes import Effect, Note, Notes
from flowfabric.cli.demo.premiere import premiere_of
from flowfabric.cli.demo.proof import Evidence, Killed, Proof, prove
from flowfabric.cli.demo.summary import summary
from flowfabric.cli.demo.tasks import Shop, open_shop, orders_of
from flowfabric.cli.demo.wanted import LANE, Wanted
from flowfabric.core.states import PublicState


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    opened = open_shop("memory://", "test", Notes(tmp_path / "effects"))
    await opened.app.connect()
    yield opened
    await opened.app.close()


async def started(shop: Shop, wanted: list[Wanted]) -> Evidence:
    handles = await shop.app.start_many(one.call for one in wanted)
    return Evidence(started=list(zip(wanted, handles, strict=True)))


async def worked(shop: Shop, evidence: Evidence) -> None:
    """As a worker would: claim, note the effect, complete; no timers involved."""
    engine = shop.app.engine
    leases = await engine.claim([LANE], 10, tasks=["charge"], worker="a", token="t", ttl_ms=60_000)
    for lease in leases:
        await engine.complete(lease, b'"receipt 1"')


def evidence_of_kill(evidence: Evidence) -> Evidence:
    evidence.killed = Killed(worker=1, process_id=1)
    return evidence


async def test_unfinished_work_is_a_problem(shop: Shop) -> None:
    evidence = await started(shop, orders_of(shop, 1))
    proof = await prove(shop.app.engine, evidence_of_kill(evidence), [], seconds=1)
    assert proof.outcomes == {"waiting": 1}
    assert "charge order 1 is waiting, not completed" in proof.problems


async def test_a_completed_execution_without_its_effect_is_a_problem(shop: Shop) -> None:
    evidence = await started(shop, orders_of(shop, 1))
    await worked(shop, evidence)
    (_, handle) = evidence.started[0]
    without = await prove(shop.app.engine, evidence, [], seconds=1)
    once = await prove(shop.app.engine, evidence, [Note(handle.id, 0)], seconds=1)
    twice = await prove(shop.app.engine, evidence, [Note(handle.id, 0)] * 2, seconds=1)
    assert f"attempt 0 of {handle.id} left 0 effects" in without.problems
    assert once.problems == ["no worker was killed"]
    assert f"attempt 0 of {handle.id} left 2 effects" in twice.problems
    assert (once.outcomes, once.attempts["initial"]) == ({"completed": 1}, 1)


async def test_another_result_is_a_problem(shop: Shop) -> None:
    (order,) = orders_of(shop, 1)
    evidence = await started(shop, [order._replace(result="receipt 2")])
    await worked(shop, evidence)
    proof = await prove(shop.app.engine, evidence, [], seconds=1)
    assert "charge order 1 has the wrong result" in proof.problems


async def test_an_ending_that_was_expected_is_no_problem(shop: Shop) -> None:
    (order,) = orders_of(shop, 1)
    evidence = await started(shop, [order._replace(ends=PublicState.CANCELLED)])
    await evidence.started[0][1].cancel("enough")
    proof = await prove(shop.app.engine, evidence, [], seconds=1)
    assert proof.problems == ["no worker was killed"]


async def test_work_of_a_killed_worker_that_nobody_took_up_is_a_problem(shop: Shop) -> None:
    evidence = evidence_of_kill(await started(shop, orders_of(shop, 1)))
    evidence.held_by_killed = [evidence.started[0][1].id]
    proof = await prove(shop.app.engine, evidence, [], seconds=1)
    assert proof.killed == Killed(worker=1, process_id=1, held=1, finished_by_other=0)
    assert "1 executions of the killed worker are unfinished" in proof.problems


async def test_a_kill_that_hit_nothing_proves_nothing(shop: Shop) -> None:
    proof = await prove(shop.app.engine, evidence_of_kill(Evidence()), [], seconds=1)
    assert proof.problems == ["the killed worker held nothing when it died"]


def test_notes_are_read_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "effects"
    assert Notes(file).read() == []
    file.write_text("{fp:1}:a 0 finished\n{fp:1}:b 2 stopped\n", encoding="ascii")
    first, second = Notes(file).read()
    assert first == ("{fp:1}:a", 0, Effect.FINISHED)
    assert second == ("{fp:1}:b", 2, Effect.STOPPED)


async def test_a_flow_that_did_not_end_is_told_member_by_member(shop: Shop) -> None:
    flow = premiere_of(shop.app, shop.studio)
    run = await flow.graph.submit()
    handles = [run.handle(node) for node in flow.nodes]
    members = list(zip(flow.wanted, handles, strict=True))
    evidence = Evidence(started=members, flow=members)
    proof = await prove(shop.app.engine, evidence, [Note(handles[-2].id, 0)], seconds=1)
    assert proof.outcomes == {"waiting": 4, "waiting_children": 11}
    assert "print translation is waiting_children, not skipped" in proof.problems
    assert "print translation ran, although it should have been skipped" in proof.problems
    assert "model huge was not stopped while it ran" in proof.problems


def member(
    state: PublicState, detail: str = "", *, attempts: int = 1, stopped: bool = False
) -> Member:
    return Member(state=state, attempts=attempts, effects=0, detail=detail, stopped=stopped)


ENDED = FlowProof(
    {
        "model swift": member(PublicState.COMPLETED, "an answer"),
        "model huge": member(PublicState.CANCELLED, "sibling_quorum_satisfied", stopped=True),
        "write invitation": member(PublicState.COMPLETED, "See it: an answer", attempts=2),
        "print translation": member(PublicState.SKIPPED, "dependency_impossible", attempts=0),
    }
)


def test_losers_that_were_stopped_for_the_race_are_no_problem() -> None:
    assert ENDED.problems() == []
    late = member(PublicState.CANCELLED, "somebody else did", stopped=True)
    assert FlowProof({"model huge": late}).problems() == [
        "model huge was cancelled for another reason: somebody else did"
    ]


@pytest.mark.parametrize(
    ("problems", "title"),
    [([], "Nothing was lost."), (["x is [b]gone[/b]"], "Something is missing.")],
)
def test_the_summary_says_whether_something_is_missing(problems: list[str], title: str) -> None:
    out = io.StringIO()
    proof = Proof(
        executions=2,
        outcomes={"completed": 2},
        attempts={"initial": 2, "retry": 0, "reclaim": 1},
        killed=Killed(worker=1, process_id=42, held=1, finished_by_other=1),
        asked_again=5,
        created_again=0,
        effects=2,
        effects_repeated=0,
        flow=ENDED,
        seconds=11.5,
        problems=problems,
    )
    summary(proof, out)
    lines = out.getvalue().splitlines()
    assert title in lines
    assert "  executions   2: 2 completed" in lines
    assert "  attempts     3: 2 initial, 0 retry, 1 reclaim" in lines
    assert "work of the killed worker: 1 executions, all 1 finished by the other" in out.getvalue()
    assert "  race         model swift won; its answer was passed on to write invitation" in lines
    assert "  stopped      while they ran: model huge" in lines
    assert "  skipped      print translation never ran: 0 attempts, 0 effects" in lines
    assert "│   └── model huge               cancelled  sibling_quorum_satisfied" in lines
    assert "├── write invitation             done       in attempt 2" in lines
    assert [f"  ! {problem}" for problem in problems] == [one for one in lines if " ! " in one]
