"""The store suite as somebody uses it who writes a store: in a folder of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from flowfabric.testing import conformance

SETTINGS = """
    [pytest]
    asyncio_mode = auto
    asyncio_default_fixture_loop_scope = function
    addopts = --strict-markers -p no:cacheprovider
    markers = case(*ids): a case of the catalogue
    filterwarnings = error
"""
MODULE = """
    import pytest
    from flowfabric.store.memory import MemoryStore
    from flowfabric.testing.clock import VirtualClock
    from flowfabric.testing.conformance import *

    class MyStore(MemoryStore):
        {body}

    @pytest.fixture
    def clock():
        return VirtualClock()

    @pytest.fixture
    async def store(clock):
        store = MyStore(clock)
        await store.migrate()
        yield store
        await store.close()

    @pytest.fixture
    async def stranger(clock):
        return MyStore(clock)

    @pytest.fixture
    def corrupter(store):
        async def corrupt(id):
            store.corrupt(id, "unknown state")

        return corrupt
"""


def run(folder: Path, body: str, *choice: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text(dedent(SETTINGS))
    (folder / "test_mine.py").write_text(dedent(MODULE).replace("{body}", dedent(body).strip()))
    command = [sys.executable, "-m", "pytest", "-q", *choice, "test_mine.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_store_that_keeps_the_contract_passes(tmp_path: Path) -> None:
    ran = run(tmp_path, "pass", "-k", "not large")
    assert ran.returncode == 0, ran.stdout
    assert " passed" in ran.stdout


def test_a_store_that_breaks_the_contract_is_told_where(tmp_path: Path) -> None:
    body = "async def claim(self, ask):\n        return (await super().claim(ask))[:3]"
    ran = run(tmp_path, body, "-k", "best_come_first")
    assert ran.returncode == 1
    assert "test_the_best_come_first_in_one_batch" in ran.stdout
    assert "assert 3 == 10" in ran.stdout


def test_every_test_of_every_part_is_handed_on() -> None:
    folder = Path(conformance.__file__).parent
    written = {
        line.removeprefix("async ").split("(")[0].removeprefix("def ")
        for path in folder.glob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith(("async def test_", "def test_"))
    }
    assert written == set(conformance.__all__)
    assert len(written) > 150
