"""Requests of operators: what makes one the repetition of another.

An operator holds no lease, so that a repeated request could not be told from a new one. Each has a
token of its own, which its repetitions share. A record keeps the last few requests that changed it,
with what they were answered: one that comes again does nothing and is answered the same, whatever
became of the record since.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec

from flowfabric.errors import Corrupt, IdempotencyConflict

KEPT = 8

_BETWEEN = " "
_DIGEST_SIGNS = 12


class Request(NamedTuple):
    """One request. `asks` tells what it asks for: the verb and its arguments, as a digest."""

    token: str
    asks: str


def request(token: str, verb: str, *arguments: object) -> Request:
    """A request of this verb; equal arguments have equal digests."""
    text = msgspec.json.encode([verb, *arguments], order="deterministic")
    return Request(token, hashlib.sha256(text).hexdigest()[:_DIGEST_SIGNS])


def answer_of(requests: str, wanted: Request) -> str | None:
    """What this request was answered when it changed the record; None if it has not.

    The same token with another verb, or with other arguments, is another request: refused.
    """
    for entry in requests.split(_BETWEEN) if requests else ():
        asks, _, rest = entry.partition("/")
        answer, slash, token = rest.partition("/")
        if not slash:
            raise Corrupt(f"the stored request {entry!r} cannot be read")
        if token == wanted.token:
            if asks != wanted.asks:
                raise IdempotencyConflict(
                    f"request '{token}' was already used for another call",
                    hint="use a new token for each request",
                )
            return answer
    return None


def with_answer(requests: str, done: Request, answer: str = "") -> str:
    """The requests after one more, the oldest forgotten when there are too many."""
    known = requests.split(_BETWEEN) if requests else []
    return _BETWEEN.join([*known, f"{done.asks}/{answer}/{done.token}"][-KEPT:])


def newest_token(requests: str) -> str:
    """The token of the request that changed the record last; empty if there was none."""
    newest = requests.rpartition(_BETWEEN)[2]
    return "/".join(newest.split("/")[2:])
