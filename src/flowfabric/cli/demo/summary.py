"""The closing words of the demo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from flowfabric.cli.demo.proof import Killed, Proof
from flowfabric.cli.terminal import console_for


def summary(proof: Proof, out: TextIO) -> None:
    from rich.text import Text

    console = console_for(out)
    title, style = ("Nothing was lost.", "bold green")
    if proof.problems:
        title, style = ("Something is missing.", "bold red")
    console.print()
    console.print(Text(title, style=style))
    for name, told in _rows(proof):
        console.print(Text(f"  {name:<13}{told}"), soft_wrap=True)
    for problem in proof.problems:
        console.print(Text(f"  ! {problem}", style="red"), soft_wrap=True)


def _rows(proof: Proof) -> list[tuple[str, str]]:
    total = sum(proof.attempts.values())
    again = f"{proof.asked_again} orders with the same keys: {proof.created_again} new executions"
    effects = f"{proof.effects} runs got to their end, one for each completed execution"
    if proof.effects_repeated:
        effects += f" and {proof.effects_repeated} whose worker died before it could say so"
    return [
        ("executions", f"{proof.executions}: {_counted(proof.outcomes)}"),
        ("attempts", f"{total}: {_counted(proof.attempts)}"),
        ("killed", _killed(proof.killed)),
        ("asked again", again),
        ("effects", effects),
        ("time", f"{proof.seconds} s"),
    ]


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _killed(killed: Killed | None) -> str:
    if killed is None:
        return "nobody"
    done, held = killed.finished_by_other, killed.held
    finished = f"all {held}" if done == held else f"{done}"
    return (
        f"worker {killed.worker} (process {killed.process_id}); "
        f"work of the killed worker: {held} executions, {finished} finished by the other"
    )
