"""The waist and what is behind it. `open_store(url)` picks the store."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit

from flowfabric.core.ids import PartitionCounts
from flowfabric.errors import InvalidInput, MissingExtra
from flowfabric.store.clock import Clock
from flowfabric.store.memory import MemoryStore
from flowfabric.store.protocol import Store

__all__ = ["Store", "open_store"]

_VALKEY = frozenset(
    name + mode for name in ("valkey", "valkeys", "redis", "rediss") for mode in ("", "+cluster")
)
_SYNCHRONOUS = ("FULL", "NORMAL")


def open_store(
    url: str, *, clock: Clock | None = None, counts: PartitionCounts | None = None
) -> Store:
    """The store that a URL names. Nothing is opened or created before `migrate`."""
    parts = urlsplit(url)
    if parts.fragment:
        # The URL may hold a password: it is not shown.
        raise InvalidInput("has a '#'", field="url", hint="write it as %23")
    match parts.scheme:
        case "memory":
            _options(parts.query, ())
            return MemoryStore(clock, counts)
        case "sqlite":
            return _sqlite(url, clock, counts)
        case "postgresql" | "postgres":
            return _postgres(url, clock, counts)
        case scheme if scheme in _VALKEY:
            return _valkey(url, clock, counts)
        case _:
            raise InvalidInput(
                f"unknown scheme {parts.scheme + '://' if parts.scheme else 'in ' + repr(url)}",
                field="url",
                hint="use sqlite:///file.db, postgresql://, valkey://, valkey+cluster:// or memory://",
            )


def _sqlite(url: str, clock: Clock | None, counts: PartitionCounts | None) -> Store:
    from flowfabric.store.sqlite import SqliteStore

    parts = urlsplit(url)
    options = _options(parts.query, ("synchronous",))
    path = unquote(parts.path[1:])
    if parts.netloc or not path:
        raise InvalidInput(
            f"{url!r} names no file",
            field="url",
            hint="three slashes before a relative path, four before a full one: sqlite:///flows.db",
        )
    synchronous = options.get("synchronous", "FULL").upper()
    if synchronous not in _SYNCHRONOUS:
        raise InvalidInput(
            f"{synchronous!r} is not possible", field="synchronous", hint="FULL or NORMAL"
        )
    return SqliteStore(path, synchronous=synchronous, clock=clock, counts=counts)


def _postgres(url: str, clock: Clock | None, counts: PartitionCounts | None) -> Store:
    try:
        from flowfabric.store.postgres import PostgresStore
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise MissingExtra(
            "postgresql:// needs an extra", field="url", hint="pip install 'flowfabric[postgres]'"
        ) from error
    return PostgresStore(url, clock=clock, counts=counts)


def _valkey(url: str, clock: Clock | None, counts: PartitionCounts | None) -> Store:
    try:
        from flowfabric.store.valkey import ValkeyStore
        from flowfabric.store.valkey.address import OPTIONS, parse_address
    except ModuleNotFoundError as error:
        if error.name != "hiredis":
            raise
        raise MissingExtra(
            f"{urlsplit(url).scheme}:// needs an extra",
            field="url",
            hint="pip install 'flowfabric[valkey]'",
        ) from error
    address = parse_address(url, _options(urlsplit(url).query, OPTIONS))
    return ValkeyStore(address, clock=clock, counts=counts)


def _options(query: str, known: tuple[str, ...]) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in known:
            allowed = ", ".join(known) or "none"
            raise InvalidInput(f"unknown option {name!r}", field="url", hint=f"known: {allowed}")
    return options
