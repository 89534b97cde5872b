"""The store suite: what every store must do, as tests that take the store as a fixture.

To run it against a store of your own, write a test module that imports every test from here and
provides four fixtures, and run pytest with `asyncio_mode = "auto"` (pytest-asyncio):

    import pytest
    from flowfabric.testing.clock import VirtualClock
    from flowfabric.testing.conformance import *

    @pytest.fixture
    def clock() -> VirtualClock:
        return VirtualClock()

    @pytest.fixture
    async def store(clock):                # opened, empty, judging time by `clock`
        store = MyStore(..., clock=clock)
        await store.migrate()
        yield store
        await store.close()

    @pytest.fixture
    async def stranger(clock): ...         # a second one, which shares nothing with the first

    @pytest.fixture
    def corrupter(store):                  # writes a state that cannot be read, as a raw client
        async def corrupt(id) -> None: ...     # could, and nothing else: no rev, no timer
        return corrupt

The marker `case` must be known to pytest (`markers` in its settings). No test sleeps or measures
time; none needs the store to have any number of connections.
"""

from __future__ import annotations

from importlib import import_module

import pytest

_PARTS = (
    "opening",
    "inserting",
    "keys",
    "bodies",
    "claiming",
    "routes",
    "copying",
    "repeating",
    "guards",
    "applying",
    "batches",
    "beside",
    "committing",
    "loading",
    "finding",
    "timers",
    "unreadable",
    "log",
    "lanes",
    "queues",
    "shifts",
    "documents",
    "hints",
    "skew",
    "crowds",
    "flows_committing",
    "flows_adding",
    "flows_pending",
    "flows_looking",
    "purging",
    "entries",
    "entries_beside",
    "flows_finding",
)

__all__: list[str] = []


def _collect() -> None:
    """Hand every test on under its own name, with asserts that explain themselves."""
    names = [f"{__name__}.{part}" for part in _PARTS]
    pytest.register_assert_rewrite(f"{__name__}.steps", f"{__name__}.flow_steps", *names)
    for name in names:
        found = {key: each for key, each in vars(import_module(name)).items() if key[:5] == "test_"}
        doubled = found.keys() & globals().keys()
        if doubled:
            raise RuntimeError(f"two tests are called {', '.join(sorted(doubled))}")
        globals().update(found)
        __all__.extend(found)


_collect()
