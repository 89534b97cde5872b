"""The clock that a test moves by hand, and what importing the kit needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flowfabric.store.clock import Clock
from flowfabric.testing import VirtualClock


def test_the_clock_stands_still_until_it_is_moved() -> None:
    clock: Clock = VirtualClock(1_000)
    assert (clock.now_ms(), clock.now_ms()) == (1_000, 1_000)


def test_the_clock_is_moved_by_a_span_or_to_an_instant() -> None:
    clock = VirtualClock(1_000)
    assert clock.advance(250) == clock.now_ms() == 1_250
    assert clock.set(2_000) == clock.now_ms() == 2_000
    assert clock.advance(0) == clock.set(2_000) == 2_000


def test_the_clock_does_not_go_back() -> None:
    clock = VirtualClock(1_000)
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)
    with pytest.raises(ValueError, match="does not go back"):
        clock.set(999)
    assert clock.now_ms() == 1_000


def test_the_kit_does_not_need_pytest() -> None:
    """A program may use the clock and the faults where no test tools are installed."""
    hidden = "import sys; sys.modules['pytest'] = None; "
    kit = "import flowfabric.testing, flowfabric.testing.build, flowfabric.testing.faults"
    subprocess.run([sys.executable, "-c", hidden + kit], check=True)
