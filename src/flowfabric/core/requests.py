"""Requests of operators, by token: a record keeps the last few that changed it, so that one that
is repeated after a lost reply is known and does nothing again.
"""

from __future__ import annotations

KEPT = 8

_BETWEEN = " "


def is_known(requests: str, token: str) -> bool:
    """Whether the request with this token has changed the record before."""
    return token in requests.split(_BETWEEN)


def with_request(requests: str, token: str) -> str:
    """The tokens after a request, the oldest forgotten when there are too many."""
    known = requests.split(_BETWEEN) if requests else []
    return _BETWEEN.join([*known, token][-KEPT:])
