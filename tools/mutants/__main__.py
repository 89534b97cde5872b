"""Samples faults by seed, tries each against the tests that should see it, and reports survivors.

Exit code 1 when one survives that tests/mutants.toml does not explain.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tools.mutants import known
from tools.mutants.areas import STAGES, Stage, all_faults
from tools.mutants.fault import Fault, read
from tools.mutants.known import Equivalent
from tools.mutants.trial import Bench, Result, Verdict

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    options = _options()
    faults = [fault for fault in all_faults(ROOT) if _is_wanted(fault, options)]
    explained, others = apart(faults, known.load(ROOT))
    chosen = sample(others, options.sample, options.seed)
    if options.list:
        for fault in chosen:
            print(told(fault))
        return 0
    print(f"{len(faults)} faults, {len(explained)} of them equivalent; trying {len(chosen)}")
    results = _try_all(chosen, options)
    survivors = [each for each in results if each.verdict is Verdict.SURVIVED]
    for each in survivors:
        print(f"survived  {told(each.fault)}")
    print(
        f"{len(results) - len(survivors)} killed, {len(survivors)} survived (seed {options.seed})"
    )
    return 1 if survivors else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=100, help="how many; 0 for all of them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--area", choices=sorted(STAGES), action="append", default=[])
    parser.add_argument("--path", default="", help="only files whose path has this in it")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="show the sample and try nothing")
    return parser.parse_args()


def _is_wanted(fault: Fault, options: argparse.Namespace) -> bool:
    is_of_area = not options.area or fault.place in options.area
    return is_of_area and options.path in fault.path


def apart(
    faults: Iterable[Fault], equivalents: Sequence[Equivalent]
) -> tuple[list[Fault], list[Fault]]:
    """Those that are known to change nothing, and the others."""
    texts: dict[str, str] = {}
    explained: list[Fault] = []
    others: list[Fault] = []
    for fault in faults:
        text = texts.setdefault(fault.path, read(ROOT, fault.path))
        is_known = any(each.is_about(fault, text) for each in equivalents)
        (explained if is_known else others).append(fault)
    return explained, others


def sample(faults: Sequence[Fault], count: int, seed: int) -> list[Fault]:
    """The same for the same seed, taken from the areas in turn: a large one hides no small one."""
    chance = random.Random(seed)  # noqa: S311 - a choice that can be repeated
    by_place = {place: [f for f in faults if f.place == place] for place in STAGES}
    for mine in by_place.values():
        chance.shuffle(mine)
    turns = [
        mine[turn] for turn in range(len(faults)) for mine in by_place.values() if turn < len(mine)
    ]
    return turns[:count] if count else turns


def told(fault: Fault) -> str:
    text = read(ROOT, fault.path)
    old = " ".join(fault.old(text).split())
    new = " ".join(fault.new.split()) or "nothing"
    return f"{fault.path}:{fault.line(text)} [{fault.place}]  {old}  ->  {new}"


def _try_all(faults: Sequence[Fault], options: argparse.Namespace) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        free: SimpleQueue[Bench] = SimpleQueue()
        limits: dict[Stage, float] = {}
        for number in range(options.workers):
            free.put(Bench(ROOT, Path(folder) / str(number), limits))
        stages = {stage for fault in faults for stage in STAGES[fault.place]}

        def green(stage: tuple[str, ...]) -> None:
            bench = free.get()
            try:
                bench.require_green(stage)
            finally:
                free.put(bench)

        def attempt(fault: Fault) -> Result:
            bench = free.get()
            try:
                result = bench.try_fault(fault)
            finally:
                free.put(bench)
            print(f"{result.verdict:9} {told(fault)}  {result.by}", file=sys.stderr)
            return result

        with ThreadPoolExecutor(options.workers) as pool:
            list(pool.map(green, sorted(stages)))
            return list(pool.map(attempt, faults))


if __name__ == "__main__":
    sys.exit(main())
