"""A private Valkey: one process with a folder of its own, reached through a port of this machine.

By default it keeps what production keeps: an append-only file, synchronised every second, and no
eviction.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from flowfabric.errors import InvalidInput, StoreUnavailable
from flowfabric.testing.servers.ports import HOST, free_port
from flowfabric.testing.servers.process import Keeper, Program, ServerProcess
from flowfabric.testing.servers.resp import Conversation
from flowfabric.testing.servers.wheels import valkey_binary

_PORT_TRIES = 5
_NONE: Mapping[str, str] = MappingProxyType({})

_SETTINGS = {
    "bind": HOST,
    "protected-mode": "yes",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    "maxmemory-policy": "noeviction",
    "daemonize": "no",
}


class ValkeyServer:
    """Stopping, killing and starting again keep the port and the data."""

    def __init__(
        self, keeper: Keeper, name: str, settings: Mapping[str, str], *, password: str = ""
    ) -> None:
        self.settings = _SETTINGS | dict(settings)
        self.password = password or secrets.token_hex(12)
        self.is_node = self.settings.get("cluster-enabled") == "yes"
        self.port = free_port(bus=self.is_node)
        self._binary = valkey_binary()
        self._folder = keeper.folder / name
        self._folder.mkdir()
        self._process = ServerProcess(keeper, name)

    @property
    def url(self) -> str:
        return f"valkey://:{self.password}@{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process to signal; None while it does not run."""
        return self._process.pid

    @property
    def log(self) -> Path:
        return self._process.log

    def launch(self) -> None:
        """Start it without waiting until it is ready."""
        configuration = self._folder / "valkey.conf"
        configuration.touch(0o600)
        configuration.write_text(self._configuration(), encoding="utf-8")
        self._process.start(
            Program("the private Valkey", self._folder, [str(self._binary), str(configuration)])
        )

    def start(self) -> None:
        if self._process.pid is None:
            self.launch()
            self.wait_until(self._is_ready)

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Look until it is so; raise if the server ends before that, or it takes too long."""
        self._process.wait_until(is_so)

    def start_on_a_free_port(self) -> None:
        """For the first start: another program may have taken the port meanwhile."""
        for attempt in range(1, _PORT_TRIES + 1):
            try:
                return self.start()
            except StoreUnavailable:
                in_use = "already in use" in self._process.last_lines()
                if attempt == _PORT_TRIES or not in_use:
                    raise
                self.port = free_port(bus=self.is_node)
        return None

    def stop(self) -> None:
        """Shut down in order: what was accepted is in the append-only file."""
        self._process.stop()

    def kill(self) -> None:
        """SIGKILL: what was not yet written is lost."""
        self._process.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def talk(self) -> Conversation:
        """A plain connection, for what a client library would hide."""
        return Conversation(self.port, self.password)

    def _is_ready(self) -> bool:
        try:
            with self.talk() as server:
                # Another server may have taken the port; this one is then about to end.
                is_ours = server.facts("INFO", "server").get("process_id") == str(self.pid)
                return is_ours and server.ask("PING") == "PONG"
        except (OSError, StoreUnavailable):
            return False

    def _configuration(self) -> str:
        own = {
            "port": str(self.port),
            "dir": str(self._folder),
            "requirepass": self.password,
            # A replica shows its primary the same password.
            "primaryauth": self.password,
        }
        lines = [
            f"{_checked(name)} {_quoted(value)}" for name, value in (self.settings | own).items()
        ]
        return "\n".join([*lines, ""])


@contextmanager
def valkey_server(settings: Mapping[str, str] = _NONE) -> Iterator[ValkeyServer]:
    """A running Valkey 9 that is gone afterwards, with all that it wrote."""
    valkey_binary()
    with Keeper() as keeper:
        server = ValkeyServer(keeper, "valkey", settings)
        server.start_on_a_free_port()
        try:
            yield server
        finally:
            server.stop()


def _checked(name: str) -> str:
    if not name.replace("-", "_").isidentifier():
        raise InvalidInput(f"{name!r} is not a setting of Valkey", field="settings")
    return name


def _quoted(value: str) -> str:
    """In quotes, with everything unusual escaped; values of several words stay several."""
    if value and all(word.isprintable() and '"' not in word for word in value.split(" ")):
        return value
    escaped = "".join(f"\\x{byte:02x}" for byte in value.encode())
    return f'"{escaped}"'
