"""Opening a store for one command: it must exist, and it is let go of at the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from flowfabric.cli import event_loop
from flowfabric.cli.stores import named_store

if TYPE_CHECKING:
    from flowfabric.app import App

R = TypeVar("R")


def with_app(store: str, work: Callable[[App], Awaitable[R]], *, namespace: str | None = None) -> R:
    """Open the store, do one thing, let go of it. A store that is not set up is refused."""
    from flowfabric.app import App
    from flowfabric.engine.doctor import require_store

    async def run(url: str, *, is_private: bool) -> R:
        app = App(url, namespace=namespace)
        if not is_private:
            await require_store(app.engine.store)
        await app.connect()
        try:
            return await work(app)
        finally:
            await app.close()

    with named_store(store) as url:
        return event_loop.run(run(url, is_private=url != store))
