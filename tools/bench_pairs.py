"""Two checkouts side by side: the same benches in turns, and how they compare.

`python tools/bench_pairs.py BEFORE AFTER --pairs 7` runs `ff bench` of both checkouts (each with an
environment of its own, made by `make setup` or `make test`) on every store, one after the other, so
that a slow minute of the machine hits both. It prints the median of the ratios: above 1 is better.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

STORES = ("sqlite", "postgres", "valkey")


@dataclass(frozen=True, slots=True)
class Bench:
    """What is run, which figure is looked at, and whether less of it is better."""

    command: tuple[str, ...]
    figure: tuple[str, ...]
    is_time: bool = False

    def per_second(self, answer: str) -> float:
        value: float = reduce(lambda found, name: found[name], self.figure, json.loads(answer))
        return 1 / value if self.is_time else value


BENCHES = {
    "cycle": Bench(("cycle", "--n", "10000"), ("end_to_end_per_s",)),
    "chain": Bench(("chain", "--nodes", "10", "--flows", "200"), ("flows_per_s",)),
    "fanout": Bench(("fanout", "--width", "100"), ("fanout_ms", "p50"), is_time=True),
}


def main() -> int:
    options = _options()
    for store in options.store:
        for name in options.bench:
            ratios = _compare(options, name, store)
            shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"{name} on {store}: {statistics.median(ratios):.3f} (of {shown})", flush=True)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--store", action="append", default=None)
    parser.add_argument("--bench", action="append", choices=sorted(BENCHES), default=None)
    options = parser.parse_args()
    options.store = options.store or list(STORES)
    options.bench = options.bench or list(BENCHES)
    return options


def _compare(options: argparse.Namespace, name: str, store: str) -> list[float]:
    ratios: list[float] = []
    for number in range(options.pairs):
        # Who goes first has the colder machine: take turns in that, too.
        order = (options.before, options.after) if number % 2 else (options.after, options.before)
        speeds = {checkout: _run(checkout, name, store) for checkout in order}
        ratios.append(speeds[options.after] / speeds[options.before])
    return ratios


def _run(checkout: Path, name: str, store: str) -> float:
    bench = BENCHES[name]
    command = [str(checkout / ".venv/bin/ff"), "bench", *bench.command, "--store", store, "--json"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return bench.per_second(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
