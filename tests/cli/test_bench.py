"""Benches: what they print and what they leave behind. How fast anything is, is not asserted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flowfabric.cli.bench import apart, big_flow, flows, idle, replicas
from flowfabric.cli.bench.cycle import Plan
from flowfabric.cli.bench.replica import Load
from flowfabric.cli.bench.targets import open_target
from flowfabric.errors import InvalidInput
from tests.cli.command import ff

ROOT = Path(__file__).resolve().parents[2]

KEYS = [
    "end_to_end_per_s",
    "enqueue_per_s",
    "drain_per_s",
    "round_trip_ms",
    "cpu_s_per_1000",
    "peak_rss_mb",
    "share_of_limit",
]


def one_object(text: str) -> dict[str, object]:
    lines = text.splitlines()
    assert len(lines) == 1
    found: dict[str, object] = json.loads(lines[0])
    return found


def test_a_cycle_prints_one_line_with_exactly_the_keys() -> None:
    ran = ff("bench", "cycle", "--store", "sqlite?synchronous=NORMAL", "--n", "20", "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    figures = one_object(ran.stdout)
    assert list(figures) == KEYS
    trip = figures.pop("round_trip_ms")
    assert isinstance(trip, dict)
    assert list(trip) == ["p50", "p95", "p99"]
    assert 0 < trip["p50"] <= trip["p95"] <= trip["p99"]
    assert all(isinstance(value, float) and value > 0 for value in figures.values())


def test_a_preload_adds_the_ratio_and_reports_to_standard_error() -> None:
    arguments = ("--n", "20", "--preload", "700", "--repeat", "2", "--json")
    ran = ff("bench", "cycle", "--store", "sqlite", *arguments)
    assert ran.returncode == 0
    figures = one_object(ran.stdout)
    assert list(figures) == [*KEYS, "ratio_to_empty"]
    assert isinstance(figures["ratio_to_empty"], float)
    assert ran.stderr.splitlines()[-1] == "preloaded 700 of 700"


def test_memory_has_no_raw_client_to_compare_with() -> None:
    ran = ff("bench", "cycle", "--store", "memory", "--n", "20", "--json")
    assert ran.returncode == 0
    figures = one_object(ran.stdout)
    assert list(figures) == KEYS
    assert figures["share_of_limit"] is None


def test_a_named_file_is_used_and_nothing_else_is_left_beside_it(tmp_path: Path) -> None:
    ran = ff("bench", "cycle", "--store", "sqlite:///x.db", "--n", "20", cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert {path.name.removesuffix("-wal").removesuffix("-shm") for path in tmp_path.iterdir()} == {
        "x.db"
    }
    for word in ("end to end", "round trip", "share of the raw client", "Python", "cores"):
        assert word in ran.stdout
    assert "\x1b" not in ran.stdout


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_the_limit_is_measured_without_an_engine(arguments: tuple[str, ...]) -> None:
    ran = ff("bench", "limit", "--store", "sqlite", "--n", "150", *arguments)
    assert (ran.returncode, ran.stderr) == (0, "")
    if arguments:
        assert list(one_object(ran.stdout)) == ["limit_per_s"]
    else:
        assert "raw client" in ran.stdout


def test_a_private_store_is_gone_afterwards() -> None:
    with open_target("sqlite?synchronous=NORMAL") as target:
        assert target.folder is not None
        assert target.url.endswith("/store.db?synchronous=NORMAL")
        assert target.beside("empty").endswith("/empty.db?synchronous=NORMAL")
        assert target.folder.is_dir()
    assert not target.folder.exists()


def test_what_is_measured_beside_a_file_is_on_the_same_disk(tmp_path: Path) -> None:
    with open_target(f"sqlite:///{tmp_path.as_posix()}/x.db?synchronous=FULL") as target:
        assert target.folder is not None
        assert target.folder.parent == tmp_path
        assert target.beside("limit").endswith("/limit.db?synchronous=FULL")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("store", ["sqlite?speed=1", "memory?speed=1", "sqlite?synchronous=OFF"])
def test_options_of_a_private_store_are_checked(store: str) -> None:
    with pytest.raises(InvalidInput), open_target(store):
        pass


def test_the_shapes_script_runs_with_the_standard_library_alone() -> None:
    script = ROOT / "benchmarks" / "sqlite_shapes.py"
    ran = subprocess.run(
        [sys.executable, "-I", str(script), "--seconds", "0", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    figures = one_object(ran.stdout)["cycles_per_s"]
    assert isinstance(figures, dict)
    assert set(figures["sqlite3"]) == {"per row", "multi-row", "json_each"}
    assert all(rates["idle"] > 0 and rates["busy"] > 0 for rates in figures["sqlite3"].values())


def test_an_idle_deployment_prints_what_it_costs() -> None:
    ran = ff("bench", "idle", "--store", "sqlite", "--seconds", "0.5", "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    figures = one_object(ran.stdout)
    assert list(figures) == ["round_trips_per_s", "cpu_percent"]
    assert all(isinstance(value, float) and value >= 0 for value in figures.values())


async def test_round_trips_of_an_idle_deployment_are_counted() -> None:
    with open_target("memory") as target:
        figures = await idle.run(target, 0.3, settle_seconds=0)
    assert figures.round_trips_per_s > 0


FLOW_BENCHES = {
    "cycle": (("--n", "5", "--apart"), ["end_to_end_per_s", "round_trip_ms"]),
    "chain": (("--nodes", "3", "--flows", "4", "--repeat", "1"), ["flows_per_s"]),
    "fanout": (("--width", "5", "--repeat", "2"), ["fanout_ms"]),
    "fanin": (("--width", "5", "--repeat", "2", "--apart"), ["p50_ms", "p99_ms"]),
    "siblings": (("--width", "4", "--repeat", "2"), ["cancel_ms"]),
    "submit": (
        ("--members", "700", "--edges", "1400"),
        ["seconds", "peak_rss_mb", "longest_stall_ms"],
    ),
    "timers": (("--n", "5"), ["lateness_ms"]),
    "entries": (("--n", "40", "--executions", "10"), ["entries_per_s"]),
}


@pytest.mark.parametrize("name", FLOW_BENCHES)
def test_a_bench_of_flows_prints_one_line_with_exactly_its_keys(name: str) -> None:
    arguments, keys = FLOW_BENCHES[name]
    ran = ff("bench", name, "--store", "sqlite?synchronous=NORMAL", *arguments, "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    figures = one_object(ran.stdout)
    assert list(figures) == keys
    for value in figures.values():
        assert (
            list(value) == ["p50", "p95", "p99"] if isinstance(value, dict) else value is not None
        )


@pytest.mark.case("FL-058")
@pytest.mark.parametrize(("limit_ms", "code"), [("0", 1), ("600000", 0)])
def test_a_race_that_takes_longer_than_its_limit_fails_the_bench(limit_ms: str, code: int) -> None:
    arguments = ("--width", "2", "--repeat", "1", "--limit-ms", limit_ms, "--json")
    ran = ff("bench", "siblings", "--store", "memory", *arguments)
    assert (ran.returncode, ran.stderr) == (code, "")
    assert list(one_object(ran.stdout)) == ["cancel_ms"]


async def test_chains_are_worked_on_by_another_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shared.db?synchronous=NORMAL"
    with open_target(url) as target:
        figures = await flows.chain(target, Load(flows=2, nodes=3), 1, is_apart=True)
    assert figures.flows_per_s > 0


@pytest.mark.parametrize("shape", list(big_flow.Shape))
async def test_a_big_flow_is_executed_as_well(shape: big_flow.Shape) -> None:
    with open_target("memory") as target:
        figures = await big_flow.submit(target, big_flow.Plan(60, 120, shape), runs=True)
    assert isinstance(figures.members_per_s, float)


def test_an_unknown_shape_is_refused() -> None:
    ran = ff("bench", "submit", "--store", "memory", "--shape", "ring")
    assert ran.returncode == 2
    assert "window, tree, join" in ran.stderr


async def test_in_memory_the_rest_of_the_process_waits_as_long_as_the_submit_takes() -> None:
    with open_target("memory") as target:
        figures = await big_flow.submit(target, big_flow.Plan(600, 600))
    assert figures.longest_stall_ms > 0


async def test_engines_share_the_rounds_of_one(tmp_path: Path) -> None:
    load = Load(flows=4, nodes=3)
    url = f"sqlite:///{tmp_path}/shared.db?synchronous=NORMAL"
    rounds, _ = await replicas._measure(url, load, engines=2)
    assert rounds == 12
    assert replicas.Replicas.__struct_fields__ == ("dispatches", "dispatches_of_one", "takeover_ms")


async def test_memory_cannot_be_shared_by_engines() -> None:
    with open_target("memory") as target, pytest.raises(InvalidInput, match="other processes"):
        await replicas.run(target, engines=2, load=Load(flows=1, nodes=2))
    with open_target("memory") as target, pytest.raises(InvalidInput, match="other processes"):
        await apart.run(target, Plan(n=1))
    with open_target("memory") as target, pytest.raises(InvalidInput, match="other processes"):
        await flows.chain(target, Load(flows=1, nodes=2), 1, is_apart=True)
