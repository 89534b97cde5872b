"""How long a thread that runs Python makes others wait, while a store is open.

The writing thread needs the interpreter for a moment between any two statements. By default a busy
event loop keeps it for five milliseconds each time, which is longer than most statements take, so
that the two hardly ever work at the same time. The setting is the whole process's: it is made
smaller, never larger, and put back with the last store, unless somebody has set it meanwhile.
"""

from __future__ import annotations

import sys
import threading
from math import isclose

SECONDS = 0.0002

_lock = threading.Lock()
_usual: list[float] = []


def begin() -> None:
    """A store was opened."""
    with _lock:
        usual = sys.getswitchinterval()
        _usual.append(usual)
        if usual > SECONDS:
            sys.setswitchinterval(SECONDS)


def end() -> None:
    """It was closed; the first that was opened knows what was there before all of them."""
    with _lock:
        usual = _usual.pop()
        # It is kept in whole microseconds.
        if not _usual and isclose(sys.getswitchinterval(), SECONDS, abs_tol=1e-7):
            sys.setswitchinterval(usual)
