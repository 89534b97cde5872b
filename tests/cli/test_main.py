"""The command as a whole: its names, its help, its way out."""

import os
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from flowfabric.cli.main import app
from tests.cli.command import ff, ff_process

ROOT = Path(__file__).resolve().parents[2]

COMMANDS: list[tuple[str, ...]] = [
    (),
    ("demo",),
    ("bench",),
    ("bench", "cycle"),
    ("bench", "limit"),
    ("bench", "idle"),
    ("bench", "contend"),
    ("db",),
    ("db", "migrate"),
    ("db", "backup"),
    ("db", "size"),
    ("db", "drop"),
    ("bench", "chain"),
    ("bench", "fanin"),
    ("bench", "fanout"),
    ("bench", "siblings"),
    ("bench", "submit"),
    ("bench", "purge"),
    ("bench", "timers"),
    ("bench", "entries"),
    ("bench", "route"),
    ("bench", "replicas"),
    ("doctor",),
    ("sweep",),
    ("worker",),
    ("workers",),
    *((name,) for name in ("run", "ps", "show", "explain", "tail", "cancel", "replay")),
    *((name,) for name in ("pause", "resume", "purge", "lanes")),
]


def registered(group: typer.Typer, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    names = [
        info.name or getattr(info.callback, "__name__", "") for info in group.registered_commands
    ]
    found = {path, *((*path, name) for name in names)}
    for info in group.registered_groups:
        if info.typer_instance is not None:
            name = info.name if isinstance(info.name, str) else info.typer_instance.info.name
            found |= registered(info.typer_instance, (*path, str(name)))
    return found


def test_every_command_is_in_the_list_of_these_tests() -> None:
    assert registered(app) == set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS)
def test_help_teaches_with_an_example(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*path, "--help"])
    assert shown.exit_code == 0
    examples = shown.output.partition("Examples:")[2].splitlines()[1:3]
    assert len(examples) == 2
    assert all(line.strip().startswith(" ".join(["ff", *path])) for line in examples)


def test_benches_are_not_on_the_first_screen_but_are_named_there() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    commands = shown.partition("Commands:")[2].partition("Exit codes:")[0]
    assert "doctor" in commands
    assert "bench" not in commands
    assert "`ff bench --help`" in " ".join(shown.split())


@pytest.mark.parametrize(
    "asked",
    [
        {"_FF_COMPLETE": "complete_bash", "COMP_WORDS": "ff wor", "COMP_CWORD": "1"},
        {"_FF_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "ff wor"},
        {
            "_FF_COMPLETE": "complete_fish",
            "_TYPER_COMPLETE_ARGS": "ff wor",
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        },
    ],
    ids=["bash", "zsh", "fish"],
)
def test_shells_complete_commands(asked: dict[str, str], tmp_path: Path) -> None:
    command = shutil.which("ff", path=str(Path(sys.executable).parent))
    assert command is not None
    told = subprocess.run(
        [command], env=os.environ | asked, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert "workers" in told.stdout
    assert "doctor" not in told.stdout


def test_help_lists_the_options_of_a_bench() -> None:
    shown = CliRunner().invoke(app, ["bench", "cycle", "--help"]).output
    for option in ("--store", "--n", "--preload", "--repeat", "--json"):
        assert option in shown


def test_the_version_is_that_of_the_package() -> None:
    try:
        expected = version("flowfabric")
    except PackageNotFoundError:
        expected = "0+unknown"
    ran = ff_process("--version")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"flowfabric {expected}\n", "")


def test_both_names_lead_to_the_same_function() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "scripts"
    ]
    assert scripts == dict.fromkeys(("flowfabric", "ff"), "flowfabric.cli.main:main")


SCHEMES = "use sqlite:///file.db, postgresql://, valkey://, valkey+cluster:// or memory://"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("bench", "cycle", "--store", "mongo://x"),
            "Error: url: unknown scheme mongo:// (" + SCHEMES + ")\n",
        ),
        (
            ("db", "size", "--store", "postgresql://x/y?shema=z"),
            (
                "Error: url: unknown option 'shema' "
                "(known options: schema, pooler, host, port, sslmode, "
                "sslcert, sslkey, sslrootcert)\n"
            ),
        ),
        (
            ("demo", "--store", "[red]x"),
            "Error: url: unknown scheme in '[red]x' (" + SCHEMES + ")\n",
        ),
        (
            ("demo", "--store", "memory://"),
            (
                "Error: store: the demo starts three processes, which cannot share memory:// "
                "(omit --store, or use sqlite:///demo.db)\n"
            ),
        ),
        (
            ("bench", "limit", "--store", "memory"),
            "Error: store: memory:// has no raw client (use sqlite or a server)\n",
        ),
    ],
)
def test_a_mistake_is_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    ran = ff(*arguments)
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", sentence)


def test_a_missing_folder_is_one_sentence_that_names_it(tmp_path: Path) -> None:
    ran = ff("bench", "cycle", "--store", "sqlite:///gone/x.db", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"Error: url: there is no folder {tmp_path / 'gone'} (create it first)\n"


def test_what_the_command_line_itself_refuses_shares_the_code_of_mistakes() -> None:
    ran = ff("bench", "cycle", "--n", "0")
    assert ran.returncode == 2
    assert "--n" in ran.stderr
    assert "Traceback" not in ran.stderr
