"""`ff db`: what it says, what it does to the file, and how it refuses."""

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest

from flowfabric.store.queries import migration_names
from flowfabric.store.sqlite import SqliteStore
from tests.cli.command import ff


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def set_up(folder: Path, name: str = "flowfabric.db") -> None:
    async def work() -> None:
        store = SqliteStore(str(folder / name))
        await store.migrate()
        await store.close()

    asyncio.run(work())


def test_a_plan_changes_nothing_and_migrating_does_what_it_said(tmp_path: Path) -> None:
    planned = ff("db", "migrate", "--plan", cwd=tmp_path)
    names = migration_names("sqlite")
    assert (planned.returncode, planned.stderr) == (0, "")
    assert planned.stdout == "".join(f"would run {name}\n" for name in names)
    assert names_in(tmp_path) == []
    ran = ff("db", "migrate", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "".join(f"ran {name}\n" for name in names))
    assert names_in(tmp_path) == ["flowfabric.db"]
    for arguments in ((), ("--plan",)):
        again = ff("db", "migrate", *arguments, cwd=tmp_path)
        assert (again.returncode, again.stdout) == (0, "up to date\n")


def test_a_backup_is_a_store_and_overwrites_nothing(tmp_path: Path) -> None:
    set_up(tmp_path)
    ran = ff("db", "backup", "copy.db", cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("copied to copy.db, ")
    again = ff("db", "backup", "copy.db", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr == "Error: target: copy.db exists (choose another name)\n"
    checked = ff("db", "migrate", "--store", "sqlite:///copy.db", "--plan", cwd=tmp_path)
    assert checked.stdout == "up to date\n"
    assert names_in(tmp_path) == ["copy.db", "flowfabric.db"]


def test_only_a_file_can_be_backed_up(tmp_path: Path) -> None:
    ran = ff("db", "backup", "copy.db", "--store", "memory", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "pg_dump" in ran.stderr
    assert names_in(tmp_path) == []


def test_sizes_are_a_table_or_one_object(tmp_path: Path) -> None:
    set_up(tmp_path)
    ran = ff("db", "size", "--json", cwd=tmp_path)
    assert (ran.returncode, ran.stderr, ran.stdout.count("\n")) == (0, "", 1)
    whole = json.loads(ran.stdout)
    assert list(whole) == ["parts", "bytes"]
    assert whole["bytes"] == (tmp_path / "flowfabric.db").stat().st_size
    assert [part["rows"] for part in whole["parts"] if part["name"] == "execution"] == [0]
    table = ff("db", "size", cwd=tmp_path)
    assert "execution" in table.stdout
    assert f"{whole['bytes'] / 1000:,.1f} kB" in table.stdout


def test_a_store_that_is_not_there_has_no_size_and_is_not_made(tmp_path: Path) -> None:
    ran = ff("db", "size", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "the store is empty\n")
    assert json.loads(ff("db", "size", "--json", cwd=tmp_path).stdout) == {"parts": [], "bytes": 0}
    assert (
        ff("db", "drop", "--yes", cwd=tmp_path).stdout
        == "the store is empty; nothing was removed\n"
    )
    assert names_in(tmp_path) == []


def test_a_drop_wants_to_be_meant(tmp_path: Path) -> None:
    set_up(tmp_path)
    size = json.loads(ff("db", "size", "--json", cwd=tmp_path).stdout)
    rows = sum(part["rows"] for part in size["parts"])
    assert rows > 0
    ran = ff("db", "drop", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f" {rows} rows" in ran.stderr
    assert "sqlite:///flowfabric.db" in ran.stderr
    assert "--yes" in ran.stderr
    assert names_in(tmp_path) == ["flowfabric.db"]
    meant = ff("db", "drop", "--yes", cwd=tmp_path)
    assert (meant.returncode, meant.stderr) == (0, "")
    assert meant.stdout.startswith(f"removed {rows} rows, ")
    assert names_in(tmp_path) == []


def test_a_file_in_use_is_not_dropped(tmp_path: Path) -> None:
    set_up(tmp_path)
    user = sqlite3.connect(tmp_path / "flowfabric.db")
    user.execute("SELECT count(*) FROM execution").fetchone()
    ran = ff("db", "drop", "--yes", cwd=tmp_path)
    assert ran.returncode == 4
    assert ran.stderr == (
        "Error: another process has the file open (stop the workers first, then drop)\n"
    )
    assert "flowfabric.db" in names_in(tmp_path)
    user.close()


@pytest.mark.parametrize(
    "command", [("migrate",), ("size",), ("drop", "--yes"), ("backup", "x.db")]
)
def test_a_file_of_another_program_is_one_sentence(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    raw = sqlite3.connect(tmp_path / "theirs.db")
    raw.execute("CREATE TABLE theirs (n)")
    raw.close()
    ran = ff("db", *command, "--store", "sqlite:///theirs.db", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "Error: the file belongs to another program (choose another path)\n"
    assert names_in(tmp_path) == ["theirs.db"]
