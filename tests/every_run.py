"""Which tests run every time, and where the time of a run went.

`make test` runs everything on the memory store and on SQLite, and on servers what shows that a
store keeps the contract: its conformance, histories beside the memory store, and one walk of an
app. What else needs a server, builds the package, measures, kills whole processes, or shows that
the labs find planted faults is *wide*: `make test-all` runs it as well.
No test lives here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pytest

ON_SERVERS = frozenset({"postgres", "postgres-16", "valkey", "valkey-cluster"})
# On servers too, every time.
KEPT = (
    "tests/store/test_conformance.py::",
    "tests/engine/test_machine.py::test_a_store_lives_through_the_same_histories[",
    "tests/app/test_graph.py::test_a_diamond_joins_two_results_and_nested_places[",
)
# Whatever their parameters.
WIDE = (
    "tests/package/",
    "tests/chaos/",
    "tests/crash/",
    "tests/examples/",
    "tests/cli/test_bench.py",
    "tests/cli/test_contend.py",
    "tests/engine/test_machine.py::test_a_planted_fault_is_found[",
    "tests/testing/test_simulation.py::test_a_planted_fault_is_found_and_found_again[",
    "tests/store/test_process_races.py",
    "tests/store/postgres/",
    "tests/store/valkey/",
    "tests/store/test_postgres_16.py",
    "tests/testing/servers/",
    "tests/faults/test_full_server.py",
    "tests/faults/test_killed_server.py",
    "tests/faults/test_promoted_",
)
MINUTE = 60


def is_wide(name: str, parameters: Iterable[object]) -> bool:
    if name.startswith(WIDE):
        return True
    is_on_server = any(isinstance(each, str) and each in ON_SERVERS for each in parameters)
    return is_on_server and not name.startswith(KEPT)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        call = getattr(item, "callspec", None)
        if is_wide(item.nodeid, () if call is None else call.params.values()):
            item.add_marker(pytest.mark.wide)


def folder_of(name: str) -> str:
    """The folder below `tests`, or the file itself."""
    return "/".join(name.partition("::")[0].split("/")[:2])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seconds: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[folder_of(report.nodeid)] += report.duration
    if sum(seconds.values()) < MINUTE:
        return
    terminalreporter.section("where the time went, in seconds of one process")
    for folder, spent in sorted(seconds.items(), key=lambda each: -each[1]):
        terminalreporter.write_line(f"{spent:7.1f}  {folder}")
