"""A few words of the Valkey protocol over a plain socket: enough to set up and ask a server."""

from __future__ import annotations

import socket
from types import TracebackType

from flowfabric.errors import StoreUnavailable
from flowfabric.testing.servers.ports import HOST

REPLY_SECONDS = 5.0


class Conversation:
    """One connection; every command waits for its reply. A refusal is an error."""

    def __init__(self, port: int, password: str) -> None:
        self._socket = socket.create_connection((HOST, port), REPLY_SECONDS)
        self._replies = self._socket.makefile("rb")
        try:
            if password:
                self.ask("AUTH", password)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Conversation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._replies.close()
        self._socket.close()

    def ask(self, *words: str) -> str:
        """The reply as text: a status, a number, or a bulk text."""
        parts = [f"*{len(words)}\r\n".encode()]
        for word in words:
            raw = word.encode()
            parts.append(b"$%d\r\n%s\r\n" % (len(raw), raw))
        self._socket.sendall(b"".join(parts))
        return self._reply(words[0])

    def _reply(self, command: str) -> str:
        line = self._replies.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise StoreUnavailable(f"Valkey refused {command}: {rest.decode(errors='replace')}")
        if kind != b"$":
            return rest.decode()
        text = self._replies.read(int(rest) + 2)
        return text[:-2].decode(errors="replace")

    def facts(self, *words: str) -> dict[str, str]:
        """A reply that is a list of `name:value`, as that of INFO."""
        lines = self.ask(*words).splitlines()
        return {
            name: value for name, mark, value in (line.partition(":") for line in lines) if mark
        }
