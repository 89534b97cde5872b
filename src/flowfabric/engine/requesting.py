"""Requests of operators as they arrive: with the caller's token, or one that is made here.

Whoever calls a verb once need not think of it: what is tried again within the call shares the
call's token. Whoever calls the verb again after an error passes the same token to both calls.
"""

from __future__ import annotations

import secrets

from flowfabric.core import names
from flowfabric.core.requests import Request, request

TOKEN_BYTES = 12


def requested(token: str | None, verb: str, *arguments: object) -> Request:
    """The request that this call is about."""
    own = secrets.token_urlsafe(TOKEN_BYTES) if token is None else names.request_token(token)
    return request(own, verb, *arguments)
