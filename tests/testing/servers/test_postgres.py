"""A private Postgres: real, as asked for, on the same port and data after every kind of end."""

from __future__ import annotations

import os
import pwd
import select
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowfabric.errors import InvalidInput, MissingExtra, StoreUnavailable
from flowfabric.testing.servers import PostgresServer, postgres, postgres_server, wheels
from tests.testing.servers.psql import ask

HIGHEST_PORT = 55_535

# Far beyond what it takes: only a process that never ends meets it.
PATIENCE_SECONDS = 60.0


@pytest.mark.parametrize("version", [16, 18])
def test_it_is_the_version_that_was_asked_for_and_synchronises(version: int, room: Path) -> None:
    with postgres_server(version) as server:
        assert ask(server, "SHOW server_version").startswith(f"{version}.")
        assert ask(server, "SHOW fsync") == "on"
        assert ask(server, "SHOW synchronous_commit") == "on"
        assert ask(server, "SHOW unix_socket_directories") == ""
        assert server.port <= HIGHEST_PORT
        assert list(room.iterdir()) != []
    assert list(room.iterdir()) == []


@pytest.fixture(scope="module")
def shared() -> Iterator[PostgresServer]:
    """One that is only looked at."""
    with postgres_server(settings={"fsync": "off", "cluster_name": "it's a \\ test"}) as server:
        yield server


def test_settings_reach_the_server_as_they_are(shared: PostgresServer) -> None:
    assert ask(shared, "SHOW fsync") == "off"
    assert ask(shared, "SHOW cluster_name") == "it's a \\ test"


def test_nobody_gets_in_without_the_password(shared: PostgresServer) -> None:
    wrong = shared.url.replace(shared.password, "guess")
    assert "password authentication failed" in ask(shared, "SELECT 1", url=wrong)
    assert ask(shared, "SELECT 1") == "1"


def test_data_and_port_outlive_a_stop_a_kill_and_a_restart() -> None:
    with postgres_server() as server:
        port, first = server.port, server.pid
        ask(server, "CREATE TABLE kept (n int)")
        server.kill()
        assert server.pid is None
        assert "refused" in ask(server, "SELECT 1")
        server.start()
        ask(server, "INSERT INTO kept VALUES (1)")
        server.restart()
        server.stop()
        server.stop()
        server.start()
        assert ask(server, "SELECT count(*) FROM kept") == "1"
        assert server.port == port
        assert server.pid != first


def test_a_kill_takes_every_process_and_the_shared_memory() -> None:
    with postgres_server() as server:
        segment = server._segment()
        assert segment is not None
        backend = int(
            ask(server, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
        )
        watched = os.pidfd_open(backend)
        try:
            server.kill()
            # Readable once the process has ended; whoever inherits it may fetch it later.
            ended, _, __ = select.select([watched], [], [], PATIENCE_SECONDS)
            assert ended == [watched]
        finally:
            os.close(watched)
        assert str(segment) not in _segments()


def _segments() -> set[str]:
    table = Path("/proc/sysvipc/shm")
    lines = table.read_text().splitlines()[1:] if table.exists() else []
    return {line.split()[1] for line in lines}


def test_a_failed_start_says_why_and_leaves_nothing(room: Path) -> None:
    with (
        pytest.raises(StoreUnavailable, match='invalid value for parameter "shared_buffers"'),
        postgres_server(settings={"shared_buffers": "plenty"}),
    ):
        pass
    assert list(room.iterdir()) == []


def test_a_port_that_somebody_took_meanwhile_is_left_to_them(
    shared: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers = [shared.port, shared.port, shared.port + 1]
    monkeypatch.setattr(postgres, "free_port", lambda: offers.pop(0))
    with postgres_server() as second:
        assert second.port == shared.port + 1
        assert ask(second, "SELECT 1") == "1"
    assert offers == []


def test_a_version_that_no_wheel_has_is_refused() -> None:
    with pytest.raises(InvalidInput, match="16 and 18"), postgres_server(12):
        pass


def test_a_setting_cannot_smuggle_in_another(room: Path) -> None:
    with pytest.raises(InvalidInput), postgres_server(settings={"a = 1\nfsync": "off"}):
        pass
    assert list(room.iterdir()) == []


def test_without_the_wheel_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "find_spec", lambda name: None)
    with (
        pytest.raises(MissingExtra, match=r"pip install 'flowfabric\[servers\]'"),
        postgres_server(),
    ):
        pass


def test_root_without_anybody_to_run_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody_there(name: str) -> None:
        raise KeyError(name)

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwnam", nobody_there)
    with pytest.raises(StoreUnavailable, match="run this as another user"):
        postgres._account()


def test_root_finds_a_folder_that_the_server_can_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert postgres._reachable_folder() in ("/tmp", "/var/tmp")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert postgres._reachable_folder() == str(tmp_path)
