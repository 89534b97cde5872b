"""While a store is open, threads of its process take turns often; afterwards as before."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowfabric.errors import StoreMismatch
from flowfabric.store.sqlite.store import SqliteStore
from flowfabric.store.sqlite.turns import SECONDS, TURNS

USUAL = 0.005


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process where nobody else has a file open: another test may have died at it."""
    monkeypatch.setattr(TURNS, "_needed_by", 0)
    before = sys.getswitchinterval()
    sys.setswitchinterval(USUAL)
    yield
    sys.setswitchinterval(before)


def opened(folder: Path, name: str = "one") -> SqliteStore:
    return SqliteStore(str(folder / f"{name}.db"))


async def test_turns_are_short_from_the_first_store_to_the_last(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path, "two")
    await first.migrate()
    await second.migrate()
    assert sys.getswitchinterval() == pytest.approx(SECONDS)
    await first.close()
    await first.close()
    assert sys.getswitchinterval() == pytest.approx(SECONDS)
    await second.close()
    assert sys.getswitchinterval() == pytest.approx(USUAL)


@pytest.mark.parametrize("chosen", [SECONDS / 10, USUAL / 2])
async def test_what_somebody_sets_meanwhile_stays(tmp_path: Path, chosen: float) -> None:
    store = opened(tmp_path)
    await store.migrate()
    sys.setswitchinterval(chosen)
    await store.close()
    assert sys.getswitchinterval() == pytest.approx(chosen)


async def test_shorter_turns_are_left_as_they_are(tmp_path: Path) -> None:
    sys.setswitchinterval(SECONDS / 10)
    store = opened(tmp_path)
    await store.migrate()
    assert sys.getswitchinterval() == pytest.approx(SECONDS / 10)
    await store.close()
    assert sys.getswitchinterval() == pytest.approx(SECONDS / 10)


async def test_a_file_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "one.db").write_text("no database, but long enough to be looked at" * 40)
    with pytest.raises(StoreMismatch):
        await opened(tmp_path).migrate()
    assert sys.getswitchinterval() == pytest.approx(USUAL)
