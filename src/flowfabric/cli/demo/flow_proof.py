"""What the store says of the flow at the end: who won, who was stopped, what never ran.

Nothing here trusts what the demo saw on the way.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flowfabric.cli.demo.notes import Effect, Note
from flowfabric.cli.demo.premiere import LOSERS, SKIPPED
from flowfabric.cli.demo.wanted import Started
from flowfabric.core.flow.model import CancelReason
from flowfabric.core.flow.outcome import FlowOutcome
from flowfabric.core.flow.summary import FlowSnapshot
from flowfabric.core.ids import FlowId
from flowfabric.core.states import AttemptLifecycle, PublicState
from flowfabric.engine.engine import Engine


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """`detail`: its result, or why it ended otherwise. `stopped`: its code was, while it ran."""

    state: PublicState
    attempts: int
    effects: int
    detail: str
    stopped: bool


class FlowProof(msgspec.Struct, frozen=True):
    """The members by label, in the order of the tree, and what they make of the flow."""

    members: dict[str, Member]
    status: FlowSnapshot | None = None

    def problems(self) -> list[str]:
        """What states and results alone do not show; those are compared for every execution."""
        found = [
            f"{label} was not stopped while it ran"
            for label in LOSERS
            if label in self.members and not self.members[label].stopped
        ]
        found += [
            f"{label} was cancelled for another reason: {self.members[label].detail}"
            for label in LOSERS
            if label in self.members and self.members[label].detail != CancelReason.SATISFIED
        ]
        if self.status is not None and self.status.outcome is not FlowOutcome.SUCCESS:
            found.append(f"the outcome of the flow is {self.status.outcome}")
        skipped = self.members.get(SKIPPED)
        if skipped is not None and (skipped.attempts or skipped.effects):
            found.append(f"{SKIPPED} ran, although it should have been skipped")
        return found


async def prove_flow(
    engine: Engine, started: Sequence[Started], notes: Sequence[Note]
) -> FlowProof:
    members: dict[str, Member] = {}
    for wanted, handle in started:
        head = await engine.read.describe(handle.id)
        if head is None:
            continue
        attempts = await engine.read.attempts(handle.id)
        is_done = head.public_state is PublicState.COMPLETED
        stopped = [
            attempt
            for attempt in attempts
            if attempt.lifecycle is AttemptLifecycle.ENDED_CANCELLED
            and Note(handle.id, attempt.attempt, Effect.STOPPED) in notes
        ]
        members[wanted.label] = Member(
            state=head.public_state,
            attempts=len(attempts),
            effects=sum(note.id == handle.id for note in notes),
            detail=str(await handle.result()) if is_done else head.outcome_detail,
            stopped=bool(stopped),
        )
    there = [handle.id for wanted, handle in started if wanted.label in members]
    if not there:
        return FlowProof(members)
    flow = (await engine.read.load(there[0])).head.flow
    return FlowProof(members, await engine.flows.status(FlowId(flow)))
