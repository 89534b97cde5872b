"""What a store offers beside its verbs, for people who look after it."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Size(NamedTuple):
    """How much there is of one table or kind of key."""

    name: str
    rows: int
    bytes: int


class Upkeep(Protocol):
    async def pending(self) -> list[str]:
        """The names of the migrations that `migrate` would run; none when it is up to date."""
        ...

    async def sizes(self) -> list[Size]:
        """How large each table or kind of key is."""
        ...

    async def drop(self) -> None:
        """Remove everything of this store."""
        ...
