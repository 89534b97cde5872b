"""Forked children: an app that was used before the fork works in both processes, on every store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowfabric.store import open_store
from tests.conftest import discard
from tests.servers import DURABLE, store_url

ROOT = Path(__file__).parents[2]
# Far beyond what anything here takes: only a child that hangs meets it.
LIMIT_SECONDS = 90


@pytest.fixture
async def url(store_kind: str, tmp_path: Path) -> AsyncIterator[str]:
    url = store_url(store_kind, tmp_path / "shared.db")
    yield url
    await discard(open_store(url))


def lines(url: str, way: str) -> list[str]:
    """What the program said; nothing on standard error is good news."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.app.forking"]
    ended = subprocess.run(
        [*command, url, way],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


def test_a_child_that_is_forked_after_use_opens_its_own_connections(url: str) -> None:
    before, child, ended, parent = lines(url, "after")
    assert before.startswith("parent ")
    assert child.startswith("child (")
    assert child.endswith(", 60)")
    assert ended == "ended 0"
    assert parent.endswith(", 600)")


def test_parent_and_child_work_beside_each_other(url: str, store_kind: str) -> None:
    said = lines(url, "beside")
    assert said == ["child 60", "ids True", "child 6000"]


def test_a_signal_ends_the_child_of_a_worker_and_not_the_worker(url: str) -> None:
    assert lines(url, "signal") == ["ready", "ended by 15", "parent 600", "stopped"]


def test_what_was_made_before_the_fork_is_used_after_it(url: str, store_kind: str) -> None:
    child, ended = lines(url, "handles")
    # In memory nothing is shared: the child begins with an empty store.
    wanted = "ExecutionNotFound" if store_kind == "memory" else "('worker', 8)"
    assert (child, ended) == (f"child {wanted}", "ended 0")


@pytest.mark.parametrize("store_kind", DURABLE)
def test_parent_and_child_are_registered_as_workers_of_their_own(url: str) -> None:
    """Neither removes the other's registration when it ends."""
    said = lines(url, "registry")
    assert said == ["registered", "ended True", "registered", "outlives True alone ended"]
