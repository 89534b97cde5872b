"""Play seeds from the command line: one to look at a failure again, or many to find one."""

from __future__ import annotations

import argparse
import sys

from flowfabric.testing.simulation.play import Played, play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m flowfabric.testing.simulation")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--steps", type=int, default=20_000, help="store calls before peace")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, one after another")
    asked = parser.parse_args()
    for seed in range(asked.seed, asked.seed + asked.seeds):
        played = play(seed, asked.steps)
        sys.stdout.write(told(played, asked.steps))
        if not played.is_well:
            return 1
    return 0


def told(played: Played, steps: int) -> str:
    """One line if all went well, else everything that helps."""
    line = (
        f"seed {played.seed}: {played.steps} calls in {played.seconds} simulated seconds, "
        f"digest {played.digest}\n"
    )
    if played.is_well:
        return line
    return (
        f"{line}{played.problem}\nfaults: {played.faults}\ncounts: {played.counts}\nlast calls:\n"
        + "".join(f"  {each}\n" for each in played.last)
        + f"again: python -m flowfabric.testing.simulation --seed {played.seed} --steps {steps}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
