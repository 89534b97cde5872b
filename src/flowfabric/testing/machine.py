"""The machine: random histories of an engine, with every invariant judged after every step.

    class OnMyStore(EngineMachine):
        def open_stores(self, clock):
            return [MyStore(clock=clock)]

    run_state_machine_as_test(OnMyStore)

With several stores, all of them live through the same history and must give the same answers.
Time is aimed: it lands on the moments at which something happens, just before, and just after.
Stale leases and old observations are kept and used later. Needs Hypothesis.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from flowfabric.core import operator
from flowfabric.core.lifecycle import Failure
from flowfabric.core.model import Lease
from flowfabric.core.operator import ExpireReason, Source
from flowfabric.core.states import LaneState, Reason, State
from flowfabric.core.timers import on_due
from flowfabric.engine.outcomes import Completed, Delayed, Failed, Outcome, Released
from flowfabric.errors import FlowFabricError
from flowfabric.store.protocol import Store
from flowfabric.testing import histories as draw
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.driver import Ask, Broken, Driver, Pick, require
from flowfabric.testing.ending import finish_everything
from flowfabric.testing.histories import Wish

T = TypeVar("T")

_HAS_LEASES = precondition(lambda self: self.lead.leases)
_HAS_ROWS = precondition(lambda self: self.lead.picture.loaded)
_HAS_SEEN = precondition(lambda self: self.lead.observed)
