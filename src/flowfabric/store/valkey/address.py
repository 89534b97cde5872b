"""What a URL says: where the servers are, who we are there, and where our keys begin.

The password is kept out of everything that is ever shown.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import SplitResult, unquote

import msgspec

from flowfabric.errors import InvalidInput
from flowfabric.store.url import options_of, port_of, split_server_url

OPTIONS = ("prefix", "replicas", "timeout", "ca")
PORT = 6379
TIMEOUT_SECONDS = 5.0
REPLICAS_MAX = 16

_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_HINT = "valkey://[user:password@]host[:port][/database][?prefix=ff], or valkey+cluster://…"


class Place(NamedTuple):
    """One server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """All that a connection needs to know. `places` are where a cluster can be asked about."""

    places: tuple[Place, ...]
    username: str = ""
    password: str = ""
    database: int = 0
    is_secure: bool = False
    is_cluster: bool = False
    prefix: str = "ff"
    replicas: int = 0
    timeout_seconds: float = TIMEOUT_SECONDS
    authority: str | None = None

    def __repr__(self) -> str:
        return f"Address({', '.join(map(str, self.places))})"


def parse_address(url: str) -> Address:
    """The address that a URL names."""
    parts = split_server_url(url)
    places = _places(parts)
    options = options_of(parts, OPTIONS)
    scheme, _, mode = parts.scheme.partition("+")
    return Address(
        places=places,
        username=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=_database(parts, is_cluster=mode == "cluster"),
        is_secure=scheme in ("valkeys", "rediss"),
        is_cluster=mode == "cluster",
        prefix=_prefix(options.get("prefix", "ff")),
        replicas=_number(options.get("replicas", "0"), "replicas", REPLICAS_MAX),
        timeout_seconds=_timeout(options.get("timeout", str(TIMEOUT_SECONDS))),
        authority=options.get("ca"),
    )


def _places(parts: SplitResult) -> tuple[Place, ...]:
    """One or, with commas between them, several servers."""
    hosts = parts.netloc.rpartition("@")[2]
    return tuple(_place(text) for text in hosts.split(",")) if hosts else (_place("localhost"),)


def _place(text: str) -> Place:
    parts = split_server_url(f"//{text}")
    return Place(parts.hostname or "localhost", port_of(parts) or PORT)


def _database(parts: SplitResult, *, is_cluster: bool) -> int:
    text = parts.path.strip("/")
    number = _number(text or "0", "database", 1_000_000)
    if number and is_cluster:
        raise InvalidInput(
            "a cluster has only database 0", field="url", hint="use ?prefix= to keep apps apart"
        )
    return number


def _number(text: str, name: str, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > most:
        raise InvalidInput(
            f"the {name} is not a valid number", field="url", hint=f"use 0 to {most}"
        )
    return int(text)


def _prefix(text: str) -> str:
    """Braces would move keys to another slot than their partition's."""
    if not _PREFIX.fullmatch(text):
        raise InvalidInput(
            f"{text!r} is not a valid key prefix",
            field="prefix",
            hint="use at most 64 letters, digits and _ . : -",
        )
    return text


def _timeout(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.05 <= seconds <= 600:
        raise InvalidInput(
            f"{text!r} is not a valid timeout", field="timeout", hint="use 0.05 to 600 seconds"
        )
    return seconds
