"""What is installed from the wheel works by itself, and is built from the sources alone.

One environment with nothing but the base requirements serves all tests here; the checkout is out
of its reach.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tools.environment import pip_environment, python_of

pytestmark = pytest.mark.package

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "flowfabric"
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

# Any date: what matters is that it is the only one.
EPOCH = "1767225600"
HIDING = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "COLUMNS", "FORCE_COLOR")


def build(folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        env=os.environ | {"SOURCE_DATE_EPOCH": EPOCH},
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_the_same_sources_give_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    again = digests(build(tmp_path / "again"))
    assert digests(dist) == again
    assert sorted(again) == [
        f"flowfabric-{VERSION}-py3-none-any.whl",
        f"flowfabric-{VERSION}.tar.gz",
    ]


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if ".dist-info/" not in name} == sources
    assert "flowfabric/py.typed" in sources
    assert any(name.endswith(".sql") for name in sources)
    assert f"flowfabric-{VERSION}.dist-info/licenses/LICENSE" in names


def test_the_sdist_can_be_tested(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"Makefile", "LICENSE", "README.md", "pyproject.toml", "requirements/base.txt"}
    needed |= {"tests/conftest.py", "tests/catalogue.toml", "tools/environment.py"}
    needed |= {"examples/01_hello.py", "docs/concepts.md", "src/flowfabric/py.typed"}
    assert needed <= names
    assert not [name for name in names if name.endswith((".pyc", ".db"))]


class Installed:
    """The environment that the wheel was installed into, used from an empty folder."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.python = python_of(folder)
        self._home = home

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name not in HIDING}
        return subprocess.run(
            [str(self.python.parent / command[0]), *command[1:]],
            cwd=self._home,
            env=environment | {"HOME": str(self._home)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def says(self, code: str) -> str:
        done = self.run("python", "-W", "error", "-c", code)
        assert (done.stderr, done.returncode) == ("", 0)
        return done.stdout.strip()


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder, home = tmp_path_factory.mktemp("venv"), tmp_path_factory.mktemp("home")
    venv.create(folder, with_pip=True)
    environment = pip_environment(folder)
    pip = [str(python_of(folder)), "-m", "pip", "install", "--quiet", "--no-compile"]
    locked = ["--require-hashes", "--requirement", str(ROOT / "requirements" / "base.txt")]
    subprocess.run([*pip, *locked], env=environment, check=True, cwd=home)
    subprocess.run([*pip, "--no-deps", str(wheel)], env=environment, check=True, cwd=home)
    return Installed(folder, home)


def test_what_is_imported_is_what_was_installed(installed: Installed) -> None:
    where = Path(installed.says("import flowfabric; print(flowfabric.__file__)"))
    assert where.is_relative_to(installed.python.parent.parent)
    assert ROOT not in where.parents
    assert installed.says("import flowfabric; print(flowfabric.__version__)") == VERSION


def test_the_base_requirements_are_all_that_it_needs(installed: Installed) -> None:
    done = installed.run("python", "-m", "pip", "check")
    assert (done.returncode, done.stdout.strip()) == (0, "No broken requirements found.")
    drivers = ("asyncpg", "hiredis", "pytest", "hypothesis")
    code = f"import importlib.util as u; print([n for n in {drivers} if u.find_spec(n)])"
    assert installed.says(code) == "[]"


@pytest.mark.parametrize("command", [["ff"], ["flowfabric"], ["python", "-m", "flowfabric"]])
def test_every_name_of_the_command_says_its_version(
    installed: Installed, command: list[str]
) -> None:
    done = installed.run(*command, "--version")
    assert (done.stdout.strip(), done.returncode) == (f"flowfabric {VERSION}", 0)


def test_the_demo_runs_with_the_base_package_alone(installed: Installed) -> None:
    done = installed.run("ff", "demo")
    assert (done.stderr, done.returncode) == ("", 0)
    assert "SIGKILL" in done.stdout
    assert "\nNothing was lost.\n" in done.stdout


def test_a_missing_extra_is_one_sentence(installed: Installed) -> None:
    done = installed.run("ff", "demo", "--store", "postgresql://localhost/flows")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install 'flowfabric[postgres]'" in done.stderr
    assert done.stdout == ""
