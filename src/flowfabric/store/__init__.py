"""The waist and what is behind it. `open_store(url)` picks the store."""

from __future__ import annotations

from urllib.parse import unquote

from flowfabric.core.ids import PartitionCounts
from flowfabric.errors import InvalidInput, MissingExtra
from flowfabric.store.clock import Clock
from flowfabric.store.memory import MemoryStore
from flowfabric.store.protocol import Store
from flowfabric.store.url import options_of, split_url

__all__ = ["Store", "open_store"]

_VALKEY = frozenset(
    name + mode for name in ("valkey", "valkeys", "redis", "rediss") for mode in ("", "+cluster")
)
_SYNCHRONOUS = ("FULL", "NORMAL")


def open_store(
    url: str, *, clock: Clock | None = None, counts: PartitionCounts | None = None
) -> Store:
    """The store that a URL names. Nothing is opened or created before `migrate`."""
    parts = split_url(url)
    match parts.scheme:
        case "memory":
            if parts.netloc or parts.path:
                raise InvalidInput("memory:// takes no name", field="url", hint="write memory://")
            options_of(parts, ())
            return MemoryStore(clock, counts)
        case "sqlite":
            return _sqlite(url, clock, counts)
        case "postgresql" | "postgres":
            return _postgres(url, clock, counts)
        case scheme if scheme in _VALKEY:
            return _valkey(url, clock, counts)
        case _:
            raise InvalidInput(
                _unknown(url, parts.scheme),
                field="url",
                hint="use sqlite:///file.db, postgresql://, valkey://, valkey+cluster:// or memory://",
            )


def _unknown(url: str, scheme: str) -> str:
    """A path is shown as it was given; anything else may hold a password."""
    if scheme:
        return f"unknown scheme {scheme}://" if "://" in url else "unknown scheme"
    return "unknown scheme" if "@" in url or ":" in url else f"unknown scheme in {url!r}"


def _sqlite(url: str, clock: Clock | None, counts: PartitionCounts | None) -> Store:
    from flowfabric.store.sqlite import SqliteStore

    parts = split_url(url)
    path = unquote(parts.path[1:])
    if parts.netloc or not path or not parts.path.startswith("/"):
        raise InvalidInput(
            "the URL names no file",
            field="url",
            hint="use three slashes before a relative path, four before an absolute one: sqlite:///flows.db",
        )
    options = options_of(parts, ("synchronous",))
    synchronous = options.get("synchronous", "FULL").upper()
    if synchronous not in _SYNCHRONOUS:
        raise InvalidInput(
            f"unknown value {synchronous!r}", field="synchronous", hint="use FULL or NORMAL"
        )
    return SqliteStore(path, synchronous=synchronous, clock=clock, counts=counts)


def _postgres(url: str, clock: Clock | None, counts: PartitionCounts | None) -> Store:
    try:
        from flowfabric.store.postgres import PostgresStore
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise MissingExtra(
            "postgresql:// needs the extra `postgres`",
            field="url",
            hint="pip install 'flowfabric[postgres]'",
        ) from error
    return PostgresStore(url, clock=clock, counts=counts)


def _valkey(url: str, clock: Clock | None, counts: PartitionCounts | None) -> Store:
    try:
        from flowfabric.store.valkey import ValkeyStore
        from flowfabric.store.valkey.address import parse_address
    except ModuleNotFoundError as error:
        if error.name != "hiredis":
            raise
        raise MissingExtra(
            f"{split_url(url).scheme}:// needs the extra `valkey`",
            field="url",
            hint="pip install 'flowfabric[valkey]'",
        ) from error
    return ValkeyStore(parse_address(url), clock=clock, counts=counts)
