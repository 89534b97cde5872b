"""What a URL says: where the server is, which schema is ours, and what is in between.

The password is in the URL, so the URL is never shown: `shown` is what messages may say.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, unquote, urlencode, urlunsplit

from flowfabric.errors import InvalidInput
from flowfabric.store.url import options_of, port_of, split_server_url

SCHEMA = "flowfabric"

# Ours, and those of the driver that say how to reach the server.
OPTIONS = (
    "schema",
    "pooler",
    "host",
    "port",
    "sslmode",
    "sslcert",
    "sslkey",
    "sslrootcert",
)
POOLERS = ("none", "transaction")

_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")


class Address(NamedTuple):
    """`dsn` is for the driver only; `pooled` means that a session is shared with others."""

    dsn: str
    shown: str
    schema: str
    pooled: bool

    def __repr__(self) -> str:
        return f"Address({self.shown})"


def parse_url(url: str) -> Address:
    parts = split_server_url(url)
    port = port_of(parts)
    options = options_of(parts, OPTIONS)
    pooler = options.pop("pooler", "none")
    if pooler not in POOLERS:
        raise InvalidInput(
            f"unknown value {pooler!r}", field="pooler", hint="use none or transaction"
        )
    schema = _schema(options.pop("schema", SCHEMA))
    dsn = urlunsplit(
        ("postgresql", parts.netloc, parts.path, urlencode(options, quote_via=quote), "")
    )
    return Address(dsn, _shown(parts.hostname, port, parts.path), schema, pooler == "transaction")


def _schema(name: str) -> str:
    if not _SCHEMA.fullmatch(name) or name.startswith("pg_"):
        raise InvalidInput(
            f"{name!r} is not a valid schema name",
            field="schema",
            hint="use letters, digits, _ and -, at most 63, a letter first, and no leading pg_",
        )
    return name


def _shown(host: str | None, port: int | None, path: str) -> str:
    where = f"{host or 'localhost'}:{port}" if port else host or "localhost"
    database = unquote(path.strip("/"))
    return f"database {database!r} on {where}" if database else where


def quoted(name: str) -> str:
    """An identifier for a statement; what was validated holds no quotes."""
    return '"' + name.replace('"', '""') + '"'
