"""The code that the documentation shows is code that runs.

Every block marked `python` in the README and in docs is a program: it is run as it stands, in an
empty folder. A block that is not meant to run is marked as something else (`text`, `pycon`).
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```(\w*)", re.MULTILINE)


class Block(NamedTuple):
    page: str
    line: int
    code: str


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks() -> Iterator[Block]:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for found in BLOCK.finditer(text):
            name = page.relative_to(ROOT).as_posix()
            yield Block(name, text.count("\n", 0, found.start()) + 1, found[1])


BLOCKS = list(blocks())


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.page}:{block.line}")
def test_a_block_of_the_documentation_runs(block: Block, tmp_path: Path) -> None:
    # A file, not an argument: tracebacks then show the line, and annotations can be read.
    program = tmp_path / "program.py"
    program.write_text(block.code, encoding="utf-8")
    folder = tmp_path / "folder"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_readme_shows_a_program() -> None:
    assert [block for block in BLOCKS if block.page == "README.md"]


def test_every_block_says_what_it_is() -> None:
    for page in pages():
        opened = FENCE.findall(page.read_text(encoding="utf-8"))[::2]
        assert all(opened), f"{page.name} has a block without a language"


def test_links_lead_somewhere() -> None:
    """Links inside the checkout name files that exist; what is built later may not be linked."""
    link = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in [
            *pages(),
            *sorted(ROOT.glob("*.md")),
            *sorted((ROOT / "examples").glob("*.md")),
        ]
        for target in link.findall(page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert dead == []
