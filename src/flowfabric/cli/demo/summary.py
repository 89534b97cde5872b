"""The closing words of the demo: the flow as it ended, and the proof line by line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from flowfabric.cli.demo import premiere, tree
from flowfabric.cli.demo.flow_proof import FlowProof
from flowfabric.cli.demo.proof import Killed, Proof
from flowfabric.cli.terminal import console_for
from flowfabric.core.states import PublicState
from flowfabric.printing import one_line


def summary(proof: Proof, out: TextIO) -> None:
    from rich.text import Text

    console = console_for(out)
    title, style = ("Nothing was lost.", "bold green")
    if proof.problems:
        title, style = ("Something is missing.", "bold red")
    console.print()
    if proof.flow.members:
        console.print(tree.draw(f"flow {premiere.NAME}, as it ended", _telling(proof.flow)))
        console.print()
    console.print(Text(title, style=style))
    for name, told in _rows(proof):
        console.print(Text(one_line(f"  {name:<13}{told}")), soft_wrap=True)
    for problem in proof.problems:
        console.print(Text(one_line(f"  ! {problem}"), style="red"), soft_wrap=True)


def _rows(proof: Proof) -> list[tuple[str, str]]:
    total = sum(proof.attempts.values())
    again = f"{proof.asked_again} orders with the same keys: {proof.created_again} new executions"
    effects = f"{proof.effects} attempts ran to their end, one for each completed execution"
    if proof.effects_repeated:
        effects += f" and {proof.effects_repeated} whose worker died before it could report them"
    return [
        ("executions", f"{proof.executions}: {_counted(proof.outcomes)}"),
        ("attempts", f"{total}: {_counted(proof.attempts)}"),
        ("killed", _killed(proof.killed)),
        ("repeated", again),
        ("effects", effects),
        *_flow_rows(proof.flow),
        ("time", f"{proof.seconds} s"),
    ]


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _killed(killed: Killed | None) -> str:
    if killed is None:
        return "none"
    done, held = killed.finished_by_other, killed.held
    finished = f"all {held}" if done == held else f"{done}"
    return (
        f"worker {killed.worker} (process {killed.process_id}); "
        f"work of the killed worker: {held} executions, {finished} finished by the other"
    )


def _telling(flow: FlowProof) -> tree.Tell:
    def told(label: str) -> tree.Told:
        member = flow.members.get(label)
        if member is None:
            return tree.Told(PublicState.WAITING, "is not in the store")
        again = f"in attempt {member.attempts}" if member.attempts > 1 else ""
        return tree.Told(member.state, again or member.detail)

    return told


def _absorbed(flow: FlowProof) -> str:
    """Why those count for nothing that did not succeed."""
    cancelled = sum(member.state is PublicState.CANCELLED for member in flow.members.values())
    failed = sum(member.state is PublicState.FAILED for member in flow.members.values())
    return f"with {cancelled} losers of races, and {failed} failure handled by a branch"


def _flow_rows(flow: FlowProof) -> list[tuple[str, str]]:
    answer = flow.members.get(premiere.WINNER)
    text = flow.members.get(premiere.DOWNSTREAM)
    skipped = flow.members.get(premiere.SKIPPED)
    if answer is None or text is None or skipped is None:
        return []
    stopped = [label for label, member in flow.members.items() if member.stopped]
    passed_on = "passed on" if answer.detail in text.detail else "NOT passed on"
    ran = f"{skipped.attempts} attempts, {skipped.effects} effects"
    status = flow.status
    rows = [] if status is None else [("flow", f"outcome {status.outcome}, {_absorbed(flow)}")]
    return [
        *rows,
        ("race", f"{premiere.WINNER} won; its answer was {passed_on} to {premiere.DOWNSTREAM}"),
        ("stopped", f"while they ran: {', '.join(stopped) or 'none'}"),
        ("skipped", f"{premiere.SKIPPED} never ran: {ran}"),
    ]
