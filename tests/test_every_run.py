"""What `make test` runs on servers, and what only `make test-all` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.every_run import KEPT, ON_SERVERS, WIDE, folder_of, is_wide
from tests.servers import DURABLE

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("kind", sorted(ON_SERVERS))
@pytest.mark.parametrize("name", KEPT)
def test_the_contract_of_a_store_runs_every_time_on_every_server(name: str, kind: str) -> None:
    assert not is_wide(f"{name}{kind}]", ["flow", kind])


@pytest.mark.parametrize("kind", sorted(ON_SERVERS))
def test_what_else_needs_a_server_is_wide(kind: str) -> None:
    assert is_wide(f"tests/app/test_graph.py::test_a_chain[{kind}]", [kind])


@pytest.mark.parametrize("kind", ["memory", "sqlite", None, 3])
def test_what_needs_none_runs_every_time(kind: object) -> None:
    assert not is_wide(f"tests/app/test_graph.py::test_a_chain[{kind}]", [kind])


def test_a_test_of_one_server_is_wide_without_a_parameter() -> None:
    assert is_wide("tests/store/postgres/test_locks.py::test_a_lock", [])


@pytest.mark.parametrize("name", [*KEPT, *WIDE])
def test_what_is_named_is_there(name: str) -> None:
    path, _, test = name.rstrip("[").partition("::")
    assert list(ROOT.glob(f"{path}*"))
    assert not test or f"def {test}(" in (ROOT / path).read_text(encoding="utf-8")


def test_every_durable_store_but_the_file_is_a_server() -> None:
    assert {*DURABLE} - {"sqlite"} <= ON_SERVERS


def test_time_is_told_by_the_folder_below_tests() -> None:
    assert folder_of("tests/store/sqlite/test_file.py::test_it[a::b]") == "tests/store"
    assert folder_of("tests/test_tidy.py::test_it") == "tests/test_tidy.py"
