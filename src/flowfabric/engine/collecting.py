"""How often Python looks for garbage that holds on to itself, while this process works.

Work makes many small records that are gone a moment later, and none of them is such garbage; by
default Python looks through them after every 700. It is made rarer, never more frequent, and stays
off where it is.
"""

from __future__ import annotations

import gc

from flowfabric.store.process_setting import ProcessSetting

RECORDS = 20_000

Thresholds = tuple[int, int, int]


def _rarer(usual: Thresholds) -> Thresholds:
    young, middle, old = usual
    return (max(young, RECORDS) if young else 0, middle, old)


COLLECTING = ProcessSetting[Thresholds](
    gc.get_threshold, lambda thresholds: gc.set_threshold(*thresholds), _rarer
)
