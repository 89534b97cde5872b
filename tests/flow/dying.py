"""A process that dies at one of its writes. No test lives here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from flowfabric.store import Store
from flowfabric.testing import FaultyStore, Kind, Verb

T = TypeVar("T")

WRITES = {Verb.COMMIT, Verb.COMMIT_EACH, Verb.APPLY, Verb.CLAIM, Verb.PENDING}


class Died(BaseException):
    """The process is gone: nothing in it can catch this and go on."""


class Mortal(FaultyStore):
    """Dies at one of its writes, counted from one, and is counted no further."""

    def __init__(self, inner: Store, at: int = 0, kind: Kind = Kind.BEFORE) -> None:
        super().__init__(inner)
        self.writes: list[Verb] = []
        self._at = at
        self._kind = kind

    async def _call(self, verb: Verb, run: Callable[[], Awaitable[T]]) -> T:
        if verb not in WRITES:
            return await run()
        self.writes.append(verb)
        is_last = len(self.writes) == self._at
        if is_last and self._kind is Kind.BEFORE:
            raise Died(verb)
        answer = await run()
        if is_last:
            raise Died(verb)
        return answer
