"""What the store says at the end, counted, and whether it is what was asked for.

Nothing here trusts what the demo saw on the way: heads, attempts and results are read again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from flowfabric.cli.demo.flow_proof import FlowProof, prove_flow
from flowfabric.cli.demo.notes import Effect, Note
from flowfabric.cli.demo.wanted import Started
from flowfabric.core.model import Attempt
from flowfabric.core.states import AttemptKind, AttemptLifecycle, PublicState
from flowfabric.engine.engine import Engine
from flowfabric.engine.reading import Snapshot


class Killed(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that died, what it held at that moment, and what became of it."""

    worker: int
    process_id: int
    held: int = 0
    finished_by_other: int = 0


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The closing summary. `problems` is empty when nothing was lost."""

    executions: int
    outcomes: dict[str, int]
    attempts: dict[str, int]
    killed: Killed | None
    asked_again: int
    created_again: int
    effects: int
    effects_repeated: int
    flow: FlowProof
    seconds: float
    problems: list[str]


class Evidence(msgspec.Struct, kw_only=True):
    """What happened on the way and cannot be read from the store."""

    started: list[Started] = []
    flow: list[Started] = []
    killed: Killed | None = None
    held_by_killed: list[str] = []
    asked_again: int = 0
    created_again: int = 0


async def prove(
    engine: Engine, evidence: Evidence, notes: Sequence[Note], *, seconds: float
) -> Proof:
    ids = [handle.id for _, handle in evidence.started]
    found = [await engine.read.describe(id) for id in ids]
    heads = {head.id: head for head in found if head is not None}
    attempts = {id: await engine.read.attempts(id) for id in heads}
    problems = await _unexpected(evidence.started, heads)
    effects = [note for note in notes if note.effect is Effect.FINISHED]
    problems += _effects_missing(heads, attempts, Counter(effects))
    killed, unfinished = _succession(evidence, heads, attempts)
    problems += unfinished
    flow = await prove_flow(engine, evidence.flow, notes)
    problems += flow.problems()
    if evidence.created_again:
        problems.append(f"{evidence.created_again} executions were made twice")
    return Proof(
        executions=len(heads),
        outcomes=dict(Counter(str(head.public_state) for head in heads.values())),
        attempts=_kinds(attempts),
        killed=killed,
        asked_again=evidence.asked_again,
        created_again=evidence.created_again,
        effects=len(effects),
        effects_repeated=len(effects) - len({note.id for note in effects}),
        flow=flow,
        seconds=round(seconds, 1),
        problems=problems,
    )


async def _unexpected(started: Sequence[Started], heads: dict[str, Snapshot]) -> list[str]:
    """Everything that did not end as it should, or with another result."""
    problems: list[str] = []
    for wanted, handle in started:
        head = heads.get(handle.id)
        if head is None:
            problems.append(f"{wanted.label} is not in the store")
        elif head.public_state is not wanted.ends:
            problems.append(f"{wanted.label} is {head.public_state}, not {wanted.ends}")
        elif head.public_state is PublicState.COMPLETED and await handle.result() != wanted.result:
            problems.append(f"{wanted.label} has the wrong result")
    return problems


def _kinds(attempts: dict[str, list[Attempt]]) -> dict[str, int]:
    counted = Counter(attempt.kind for each in attempts.values() for attempt in each)
    kinds = (AttemptKind.INITIAL, AttemptKind.RETRY, AttemptKind.RECLAIM)
    return {str(kind): counted.pop(kind, 0) for kind in kinds} | {
        str(kind): count for kind, count in counted.items()
    }


def _effects_missing(
    heads: dict[str, Snapshot],
    attempts: dict[str, list[Attempt]],
    effects: Counter[Note],
) -> list[str]:
    """Each completed execution completed in one attempt, and that one ran to its end once."""
    problems: list[str] = []
    for id, head in heads.items():
        done = [a.attempt for a in attempts[id] if a.lifecycle is AttemptLifecycle.ENDED_SUCCESS]
        if len(done) != (head.public_state is PublicState.COMPLETED):
            problems.append(f"{id} has {len(done)} completed attempts and is {head.public_state}")
        problems += [
            f"attempt {number} of {id} left {effects[Note(id, number)]} effects"
            for number in done
            if effects[Note(id, number)] != 1
        ]
    return problems


def _succession(
    evidence: Evidence,
    heads: dict[str, Snapshot],
    attempts: dict[str, list[Attempt]],
) -> tuple[Killed | None, list[str]]:
    """Whether what the killed worker held was taken up, and ended, by somebody else."""
    killed = evidence.killed
    if killed is None:
        return None, ["no worker was killed"]
    held = evidence.held_by_killed
    if not held:
        return killed, ["the killed worker held nothing when it died"]
    finished = 0
    for id in held:
        tries = attempts[id]
        lost = [a for a in tries if a.lifecycle is AttemptLifecycle.INTERRUPTED_RECLAIMED]
        is_over = heads[id].ended_ms is not None
        finished += bool(lost) and is_over and tries[-1].worker != lost[-1].worker
    killed = msgspec.structs.replace(killed, held=len(held), finished_by_other=finished)
    missing = len(held) - finished
    return killed, [f"{missing} executions of the killed worker are unfinished"] if missing else []
