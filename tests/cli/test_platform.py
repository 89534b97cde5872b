"""Nothing that only POSIX systems have is needed before it is used."""

import subprocess
import sys

HIDING = """
import sys

HIDDEN = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in HIDDEN:
            raise ModuleNotFoundError(f"no module named {name!r} here", name=name)
        return None

for name in HIDDEN:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Hidden())
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HIDING + program], capture_output=True, text=True, check=False
    )


def test_the_blocker_blocks() -> None:
    ran = run("import resource")
    assert ran.returncode == 1
    assert "no module named 'resource' here" in ran.stderr


MODULES = (
    "flowfabric",
    "flowfabric.cli.main",
    "flowfabric.cli.demo.run",
    "flowfabric.cli.demo.summary",
    "flowfabric.cli.demo.worker",
    "flowfabric.cli.bench.cycle",
    "flowfabric.cli.bench.report",
    "flowfabric.store.sqlite",
    "flowfabric.testing",
)


def test_modules_import_where_posix_modules_are_missing() -> None:
    ran = run("".join(f"import {module}; print({module}.__name__)\n" for module in MODULES))
    assert (ran.stdout.split(), ran.stderr) == ([*MODULES], "")


def test_peak_memory_is_unknown_where_the_system_does_not_say() -> None:
    ran = run("from flowfabric.cli.bench.machine import peak_rss_mb; print(peak_rss_mb())")
    assert (ran.stdout, ran.stderr) == ("None\n", "")


def test_the_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from flowfabric.cli.main import main\n"
        "sys.argv = ['ff', '--help']\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    heavy = {'rich.live', 'rich.table', 'sqlite3', 'flowfabric.cli.demo.run',\n"
        "             'flowfabric.cli.bench.cycle'}\n"
        "    print(sorted(heavy & sys.modules.keys()), file=sys.stderr)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "[]\n")
