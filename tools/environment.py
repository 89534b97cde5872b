"""Makes and refreshes an environment of this checkout; run it with the Python it shall be made of.

A level is a set of locked requirements plus the package itself, editable. A stamp inside the
environment remembers what was installed, so a second run does nothing. Nothing is written
outside the environment and the cache folder.
"""

import argparse
import ensurepip
import hashlib
import os
import platform
import shutil
import ssl
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEVELS = {
    "base": ("base.txt", "build.txt"),
    "dev": ("dev.txt",),
    "lock": ("base.txt", "build.txt", "lock.txt"),
}
# A level that is installed serves these as well; asking for less never takes anything away.
SERVED_BY = {"base": ("base", "dev", "lock"), "dev": ("dev",), "lock": ("lock",)}
# Settings by which pip or the library under it is told which certificates to trust.
CERTIFICATE_SETTINGS = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
# Settings that would send packages elsewhere than into the environment.
ELSEWHERE = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PYTHONHOME", "PYTHONPATH")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("level", choices=sorted(LEVELS))
    arguments.add_argument("--at", type=Path, default=ROOT / ".venv")
    options = arguments.parse_args()
    ensure(options.at.resolve(), options.level)


def ensure(folder: Path, level: str) -> None:
    """Bring the environment to the level, from nothing if it belongs to another Python."""
    if read_stamp(folder, "python") != identity(folder) or not runs(folder):
        make(folder)
    if any(read_stamp(folder, served) == digest(served) for served in SERVED_BY[level]):
        return
    install(folder, level)


def identity(folder: Path) -> str:
    return f"{platform.python_implementation()} {sys.version} {sys.base_prefix} {folder}"


def digest(level: str) -> str:
    """What the level is made of: its locked requirements and the package's own definition."""
    parts = [ROOT / "requirements" / name for name in LEVELS[level]]
    content = b"\0".join(path.read_bytes() for path in [*parts, ROOT / "pyproject.toml"])
    return hashlib.sha256(content).hexdigest()


def make(folder: Path) -> None:
    say(f"making {shown(folder)} with Python {platform.python_version()}")
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    write_stamp(folder, "python", identity(folder))


def install(folder: Path, level: str) -> None:
    say(f"installing the {level} requirements into {shown(folder)}")
    current = [known for known in LEVELS if read_stamp(folder, known) == digest(known)]
    # Until pip is done the environment is none of its levels, also when it is interrupted.
    for known in LEVELS:
        stamp(folder, known).unlink(missing_ok=True)
    environment = pip_environment(folder)
    locked = [f"--requirement={ROOT / 'requirements' / name}" for name in LEVELS[level]]
    pip(folder, environment, "--require-hashes", *locked)
    pip(folder, environment, "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    for known in [level, *current]:
        write_stamp(folder, known, digest(known))


def pip(folder: Path, environment: dict[str, str], *arguments: str) -> None:
    command = [str(python_of(folder)), "-m", "pip", "install", "--quiet", "--no-compile"]
    finished = subprocess.run([*command, *arguments], env=environment, check=False)
    if finished.returncode:
        sys.exit(f"pip could not install into {shown(folder)}; what it said stands above")


def pip_environment(folder: Path) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    environment.setdefault("PIP_CACHE_DIR", str(ROOT / ".cache" / "pip"))
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    environment["PIP_NO_INPUT"] = "1"
    certificates = system_certificates(folder, environment)
    if certificates:
        environment["PIP_CERT"] = certificates
    return environment


def system_certificates(folder: Path, environment: dict[str, str]) -> str:
    """The system's certificates for a pip too old to look there itself; empty to leave it alone."""
    knows_the_system = version_of(ensurepip.version()) >= (24, 2)
    told = any(environment.get(name) for name in CERTIFICATE_SETTINGS)
    if knows_the_system or told or configured_certificates(folder, environment):
        return ""
    paths = ssl.get_default_verify_paths()
    hashed_folder = paths.capath if paths.capath and any(Path(paths.capath).glob("*.0")) else None
    return paths.cafile or hashed_folder or ""


def configured_certificates(folder: Path, environment: dict[str, str]) -> bool:
    command = [str(python_of(folder)), "-m", "pip", "config", "list"]
    listed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return ".cert=" in listed.stdout


def version_of(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def python_of(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def runs(folder: Path) -> bool:
    """False when the Python it was made of has since been removed or replaced."""
    try:
        subprocess.run([python_of(folder), "-c", ""], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def stamp(folder: Path, name: str) -> Path:
    return folder / f".installed-{name}"


def read_stamp(folder: Path, name: str) -> str:
    path = stamp(folder, name)
    return path.read_text(encoding="utf-8") if path.exists() else ""


def write_stamp(folder: Path, name: str, content: str) -> None:
    stamp(folder, name).write_text(content, encoding="utf-8")


def shown(folder: Path) -> Path:
    return folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder


def say(text: str) -> None:
    print(f"== {text}", flush=True)


if __name__ == "__main__":
    main()
