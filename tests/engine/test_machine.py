"""Random histories of the engine on the memory store, and beside it on every other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings

from flowfabric.core import lifecycle, settle, transition
from flowfabric.core.ids import PartitionCounts
from flowfabric.core.model import Claim, Execution, Value
from flowfabric.core.settle import Facts, Settled
from flowfabric.core.states import State
from flowfabric.core.transition import Held, Seen
from flowfabric.store import Store, memory, open_store
from flowfabric.store.memory import MemoryStore
from flowfabric.store.memory_log import LogBook
from flowfabric.store.memory_timers import TimerBook
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.driver import Broken
from flowfabric.testing.machine import play
from tests.conftest import Size, discard
from tests.servers import store_url

SEARCH = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)

# What a run of any size cannot miss; the tally says what else it did.
CERTAIN = {"submit", "claim", "renew", "complete", "fail", "delay", "release", "sweep", "time"}


def lasting(histories: int, steps: int, phases: Sequence[Phase] = SEARCH) -> settings:
    return settings(
        max_examples=histories,
        stateful_step_count=steps,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


def in_memory(clock: VirtualClock) -> Sequence[Store]:
    return [MemoryStore(clock)]


@pytest.mark.lab
def test_every_invariant_holds_after_every_step(size: Size) -> None:
    how = lasting(3_000, 100) if size == "long" else lasting(150, 50)
    tally = play(in_memory, how)
    sys.stdout.write(f"memory: {tally}\n")
    assert tally.done() >= CERTAIN


# A history is of one partition, and a store that keeps partitions apart looks into every one after
# every step: with few of them it lives through more.
FEW = PartitionCounts(flow=16)

# Histories and steps beside the memory store; a server takes longer for each.
SIZES = {
    "sqlite": {"small": (25, 50), "long": (500, 60)},
    "postgres": {"small": (18, 60), "long": (200, 60)},
    "valkey": {"small": (18, 60), "long": (300, 60)},
    "valkey-cluster": {"small": (15, 60), "long": (200, 60)},
}
PROGRESS_EVERY = 50


@pytest.mark.lab
@pytest.mark.parametrize("kind", SIZES)
def test_a_store_lives_through_the_same_histories(
    kind: str, size: Size, tmp_path: Path, progress: Callable[[str], None]
) -> None:
    """Beside the memory store: the same answers and the same records after every step."""
    numbers = count()
    counts = FEW if "valkey" in kind else None

    def both(clock: VirtualClock) -> Sequence[Store]:
        number = next(numbers)
        if number and number % PROGRESS_EVERY == 0:
            progress(f"{number} histories")
        url = store_url(kind, tmp_path / f"{number}.db")
        return [MemoryStore(clock, counts), open_store(url, clock=clock, counts=counts)]

    tally = play(both, lasting(*SIZES[kind][size]), discard)
    sys.stdout.write(f"memory and {kind}: {tally}\n")
    assert tally.done() >= CERTAIN


# Faults that were planted: a machine that finds nothing proves nothing.

Plant = Callable[[pytest.MonkeyPatch], None]


def alive_at_its_end(patch: pytest.MonkeyPatch) -> None:
    def holds(guard: Held | Seen, row: Execution, store_now_ms: int) -> bool:
        return transition.guard_holds(guard, row, store_now_ms - 1)

    patch.setattr(memory, "guard_holds", holds)


def fence_without_epoch(patch: pytest.MonkeyPatch) -> None:
    def claimed(row: Execution, ask: Claim) -> dict[str, Value]:
        return {**transition.claimed(row, ask), "epoch": row.epoch}

    patch.setattr(memory, "claimed", claimed)


def retry_without_timer(patch: pytest.MonkeyPatch) -> None:
    def retried(head: Execution, now_ms: int, pause_ms: int) -> dict[str, Value]:
        return {**rightly(head, now_ms, pause_ms), "due_ms": None}

    rightly = lifecycle.retried
    patch.setattr(lifecycle, "retried", retried)


def pause_overlooked(patch: pytest.MonkeyPatch) -> None:
    def settled(facts: Facts, now_ms: int) -> Settled:
        return rightly(msgspec.structs.replace(facts, paused=False), now_ms)

    rightly = settle.settle
    for module in ("operator", "timers", "leases", "lifecycle"):
        patch.setattr(f"flowfabric.core.{module}.settle", settled)


def stale_entries_in_the_queue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryStore, "_forget_stale", lambda store, queue: None)


def timers_that_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TimerBook, "_is_armed", lambda book, timer, rows: True)


def forgotten_line(patch: pytest.MonkeyPatch) -> None:
    rightly = LogBook.append

    def append(book: LogBook, row: Execution, now_ms: int, line: transition.LogLine) -> None:
        if row.state is not State.DELAYED:
            rightly(book, row, now_ms, line)

    patch.setattr(LogBook, "append", append)


@pytest.mark.lab
@pytest.mark.parametrize(
    "plant",
    [
        alive_at_its_end,
        fence_without_epoch,
        retry_without_timer,
        pause_overlooked,
        stale_entries_in_the_queue,
        timers_that_stay,
        forgotten_line,
    ],
)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(Broken):
        play(in_memory, lasting(1_000, 100, phases=(Phase.generate,)))
