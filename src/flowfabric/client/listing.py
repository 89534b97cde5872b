"""Listing: what every verb answers that lists something.

Nothing is read before it is used. `async for` reads page by page; `await` collects everything;
`count` says how many there are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Sequence
from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)

Pages = Callable[[], AsyncIterator[Sequence[T_co]]]


class Listing(Generic[T_co]):
    """Some records, asked for anew each time that it is used."""

    def __init__(self, pages: Pages[T_co]) -> None:
        self._pages = pages

    async def __aiter__(self) -> AsyncIterator[T_co]:
        async for page in self._pages():
            for each in page:
                yield each

    def __await__(self) -> Generator[object, None, list[T_co]]:
        return self._all().__await__()

    async def _all(self) -> list[T_co]:
        return [each async for page in self._pages() for each in page]

    async def count(self) -> int:
        """How many there are now."""
        total = 0
        async for page in self._pages():
            total += len(page)
        return total
