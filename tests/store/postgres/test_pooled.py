"""Behind a transaction pooler, where a verb is a transaction of its own: what is whole stays so."""

from __future__ import annotations

import pytest

from flowfabric.store.postgres import PostgresStore
from flowfabric.testing.conformance.applying import *  # noqa: F403
from flowfabric.testing.conformance.committing import *  # noqa: F403
from flowfabric.testing.conformance.keys import *  # noqa: F403
from flowfabric.testing.conformance.skew import *  # noqa: F403
from tests.store.postgres.desk import Desk


@pytest.fixture
async def store(desk: Desk) -> PostgresStore:
    return await desk.opened("&pooler=transaction")
