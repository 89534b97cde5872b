"""Tools for tests of FlowFabric and of what is built on it.

Nothing imported here needs pytest; the store suite in `conformance` does.
"""

from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb

__all__ = ["Fault", "FaultyStore", "Kind", "Verb", "VirtualClock"]
