"""How long a thread that runs Python makes others wait, while a store is open.

The writing thread needs the interpreter for a moment between any two statements. By default a busy
event loop keeps it for five milliseconds each time, which is longer than most statements take, so
that the two hardly ever work at the same time. It is made shorter, never longer.
"""

from __future__ import annotations

import sys

from flowfabric.store.process_setting import ProcessSetting

SECONDS = 0.0002

TURNS = ProcessSetting(
    sys.getswitchinterval, sys.setswitchinterval, lambda usual: min(usual, SECONDS)
)
