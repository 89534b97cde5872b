"""Which store and namespace count when none is named, for apps and for commands alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowfabric import App, InvalidInput
from flowfabric.settings import (
    DEFAULT_STORE,
    FILE_NAME,
    NAMESPACE_VARIABLE,
    STORE_VARIABLE,
    default_namespace,
    default_store,
)
from flowfabric.store.sqlite import SqliteStore
from tests.cli.command import ff


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (STORE_VARIABLE, NAMESPACE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, text: str) -> None:
    (folder / FILE_NAME).write_text(text, encoding="utf-8")


@pytest.mark.usefixtures("project")
def test_without_settings_it_is_a_file_in_the_current_folder() -> None:
    assert (default_store(), default_namespace()) == (DEFAULT_STORE, "default")


def test_the_nearest_file_above_counts_and_its_paths_are_beside_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, 'store = "sqlite:///flows.db?synchronous=NORMAL"\nnamespace = "shop"\n')
    inner = project / "src" / "shop"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert default_store() == f"sqlite:///{project.as_posix()}/flows.db?synchronous=NORMAL"
    assert default_namespace() == "shop"
    write(inner, 'store = "sqlite:////full/flows.db"')
    assert (default_store(), default_namespace()) == ("sqlite:////full/flows.db", "default")


def test_the_environment_comes_before_the_file(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, 'store = "memory://"\nnamespace = "shop"\n')
    monkeypatch.setenv(STORE_VARIABLE, "valkey://cache")
    monkeypatch.setenv(NAMESPACE_VARIABLE, "night")
    assert (default_store(), default_namespace()) == ("valkey://cache", "night")


def test_an_app_that_names_neither_uses_the_settings(project: Path) -> None:
    write(project, 'store = "sqlite:///flows.db"\nnamespace = "shop"\n')
    app = App()
    assert isinstance(app.engine.store, SqliteStore)
    assert app.engine.store.path == str(project / "flows.db")
    assert app.engine.namespace == "shop"
    assert App("memory://", namespace="other").engine.namespace == "other"


def test_a_command_uses_the_settings_and_its_option_comes_first(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, 'store = "sqlite:///flows.db"')
    assert ff("db", "migrate").returncode == 0
    assert (project / "flows.db").exists()
    monkeypatch.setenv(STORE_VARIABLE, "sqlite:///second.db")
    assert ff("db", "migrate").returncode == 0
    assert (project / "second.db").exists()
    assert ff("db", "migrate", "--store", "sqlite:///third.db").returncode == 0
    assert (project / "third.db").exists()


def test_help_says_where_the_store_comes_from_and_shows_no_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(STORE_VARIABLE, "postgresql://me:secret@db/app")
    shown = " ".join(ff("doctor", "--help").stdout.split())
    assert f"{STORE_VARIABLE}, `store` in {FILE_NAME}, else {DEFAULT_STORE}" in shown
    assert "secret" not in shown


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("stoer = 'memory://'", "stoer"),
        ("store = 5", "store"),
        ("store = ", "Invalid value"),
    ],
)
def test_a_mistake_in_the_file_names_the_file_and_the_field(
    project: Path, text: str, problem: str
) -> None:
    write(project, text)
    with pytest.raises(InvalidInput, match=problem) as raised:
        App()
    assert str(project / FILE_NAME) in str(raised.value)
