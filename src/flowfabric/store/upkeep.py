"""What somebody who keeps a store asks of it, beside the verbs that work goes through.

None of this needs `migrate` first, and nothing is created by asking: a store that was never set up
has every migration pending, no size, and nothing to drop. A store of another program is
`StoreMismatch` and is never touched. Close the store afterwards, as after any verb.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

# Parts that belong to nobody who goes: lanes, and what a store keeps for itself once it was used.
LASTING = ("lane", "feed", "partition", "shared")
# A log of so many bytes that nobody can empty: four times what is left to gather by itself.
LOG_ALARM_BYTES = 64_000_000


class Size(msgspec.Struct, frozen=True):
    """What one table, or one kind of key, holds and takes. All of them together are the store;
    what belongs to none of them has a line of its own with no rows."""

    name: str
    rows: int
    bytes: int


@runtime_checkable
class Upkeep(Protocol):
    """Implemented by every store."""

    async def unmigrated(self) -> list[str]:
        """The names of the migrations that `migrate` would run, in order; none when up to date.

        A store that is newer than this program is `StoreMismatch`.
        """
        ...

    async def sizes(self) -> list[Size]:
        """How large the parts of the store are, in a fixed order."""
        ...

    async def drop(self) -> None:
        """Remove everything that belongs to the store, and nothing else.

        Refused where the store can tell that somebody works with it. Repeating it is harmless.
        """
        ...


@runtime_checkable
class Copyable(Protocol):
    """A store that is a file; servers have tools of their own for this."""

    async def backup(self, target: Path) -> None:
        """Write a copy as of one moment, while others go on writing. Never overwrites.

        The copy is a life of its own: cursors of the original are `CursorExpired` there.
        """
        ...


@runtime_checkable
class Checkpointable(Protocol):
    """A store whose writes go to a log first, which somebody has to move to where they belong."""

    async def checkpoint(self) -> int:
        """Move what the log holds and nobody reads any more, without keeping anybody waiting;
        answers how many bytes had to stay."""
        ...


class Verified(msgspec.Struct, frozen=True):
    """How many copies were set right, and where to go on; empty from the beginning."""

    repaired: int = 0
    cursor: str = ""


@runtime_checkable
class Verifiable(Protocol):
    """A store that keeps copies of what its records say, which can differ from them: indexes of its
    own making. Stores whose indexes are the database's have nothing to verify."""

    async def verify(self, cursor: str, limit: int) -> Verified:
        """Compare the copies of at most so many records with the records, after this cursor, and
        set the copies right. The records themselves are not touched."""
        ...


class Damage(msgspec.Struct, frozen=True):
    """Something that is wrong with the store as a whole, and no read of a record would tell."""

    subject: str
    sentence: str


@runtime_checkable
class Inspectable(Protocol):
    """A store that can look at itself below its records: pages, indexes, records without owner."""

    async def inspect(self) -> list[Damage]:
        """What is wrong; nothing is repaired. It may read everything there is."""
        ...


class Hindrance(msgspec.Struct, frozen=True):
    """Something that others do to the server, which slows the store down, and the cure."""

    subject: str
    sentence: str


@runtime_checkable
class Hinderable(Protocol):
    """A store whose server is shared with others who can slow it down."""

    async def hindrances(self, older_than_ms: int) -> list[Hindrance]:
        """What has gone on for at least so long, longest first, as far as this user may see it."""
        ...
