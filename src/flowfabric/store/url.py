"""Taking a store's URL apart. It may hold a password, also where none belongs: no error here shows
a part of it, and none is chained to an error that does."""

from __future__ import annotations

from urllib.parse import SplitResult, parse_qsl, urlsplit

from flowfabric.errors import InvalidInput

ESCAPES = "write / ? # @ [ ] and : in a user or a password as %2F %3F %23 %40 %5B %5D and %3A"
PORT_MAX = 65_535


def split_url(url: str) -> SplitResult:
    parts = _split(url)
    if parts is None:
        raise InvalidInput("the URL cannot be read", field="url", hint=ESCAPES)
    if parts.fragment:
        raise InvalidInput("the URL has a '#'", field="url", hint="write it as %23")
    return parts


def split_server_url(url: str) -> SplitResult:
    """The URL of a server: user, password and host come before the first slash."""
    parts = split_url(url)
    if "@" in parts.path or "@" in parts.query:
        raise InvalidInput("the URL has an '@' after the host", field="url", hint=ESCAPES)
    return parts


def options_of(parts: SplitResult, known: tuple[str, ...]) -> dict[str, str]:
    """Once the host and its port are known to be right: else these may be half of a password."""
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in known:
            shown = f"unknown option {name!r}" if name.isidentifier() else "an unknown option"
            allowed = ", ".join(known) or "none"
            raise InvalidInput(shown, field="url", hint=f"known options: {allowed}")
    return options


def port_of(parts: SplitResult) -> int | None:
    port = _port(parts)
    if port == 0:
        raise InvalidInput(
            "the port is not a valid number", field="url", hint=f"use 1 to {PORT_MAX}"
        )
    return port


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _port(parts: SplitResult) -> int | None:
    """Zero for what is no port."""
    try:
        return parts.port
    except ValueError:
        return 0
