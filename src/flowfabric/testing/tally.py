"""What was played: histories, steps, and how each verb was answered."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """Counted while it happens; printed at the end of a long run."""

    histories: int = 0
    steps: int = 0
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)

    def done(self) -> set[str]:
        """The verbs that did what they are for."""
        return {verb for verb, answer in self.answers if answer == "done"}

    def __str__(self) -> str:
        verbs: dict[str, list[str]] = {}
        for (verb, answer), count in sorted(self.answers.items()):
            verbs.setdefault(verb, []).append(f"{answer} {count}")
        lines = [f"  {verb}: {', '.join(answers)}" for verb, answers in verbs.items()]
        return "\n".join([f"{self.histories} histories, {self.steps} steps", *lines])
