"""Fixtures of the app's tests: an app on every store, by the real clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowfabric import App
from flowfabric.store import open_store
from tests.conftest import discard
from tests.servers import store_url


@pytest.fixture
async def url(store_kind: str, tmp_path: Path) -> AsyncIterator[str]:
    url = store_url(store_kind, tmp_path / "app.db")
    yield url
    await discard(open_store(url))


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    """Nothing runs on it until a test says so."""
    app = App(url, drain="5s")
    yield app
    await app.close()
