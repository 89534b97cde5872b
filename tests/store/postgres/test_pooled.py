"""Behind a transaction pooler, where a verb is a transaction of its own: what is whole stays so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowfabric.store.postgres import PostgresStore
from flowfabric.testing import VirtualClock
from flowfabric.testing.conformance.applying import *  # noqa: F403
from flowfabric.testing.conformance.committing import *  # noqa: F403
from flowfabric.testing.conformance.keys import *  # noqa: F403
from flowfabric.testing.conformance.skew import *  # noqa: F403
from tests.conftest import discard
from tests.servers import store_url


@pytest.fixture
async def store(clock: VirtualClock, tmp_path: Path) -> AsyncIterator[PostgresStore]:
    url = store_url("postgres", tmp_path / "store")
    store = PostgresStore(f"{url}&pooler=transaction", clock=clock)
    await store.migrate()
    yield store
    await discard(store)
