"""The store that a command is given: a URL, or one word for a private one that is gone afterwards.

Every command that takes a store takes it through here. Words may carry options, as URLs do:
`'sqlite?synchronous=NORMAL'`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple, Protocol

import typer

from flowfabric.settings import (
    NAMESPACE_SOURCES,
    STORE_SOURCES,
    default_namespace,
    default_store,
)

STORE_HELP = (
    "A store URL, or `memory`, `sqlite`, `sqlite?synchronous=NORMAL`, `postgres`, `valkey`, "
    "`valkey-cluster` for a private temporary store."
)

StoreOption = Annotated[
    str,
    typer.Option(
        "--store", default_factory=default_store, show_default=STORE_SOURCES, help=STORE_HELP
    ),
]
NamespaceOption = Annotated[
    str,
    typer.Option(
        "--namespace",
        default_factory=default_namespace,
        show_default=NAMESPACE_SOURCES,
        help="The namespace.",
    ),
]

_PREFIX = "flowfabric-private-"


class Server(Protocol):
    @property
    def url(self) -> str: ...


class Kind(NamedTuple):
    """A kind of private server: what it is called, a URL of its driver, how it is started."""

    title: str
    sample: str
    start: Callable[[], AbstractContextManager[Server]]


@contextmanager
def named_store(store: str) -> Iterator[str]:
    """The URL of the store that was named. A private one lives as long as this context."""
    from flowfabric.store import open_store

    word, mark, options = store.partition("?")
    query = mark + options
    if word == "memory":
        open_store(f"memory://{query}")
        yield "memory://"
    elif word == "sqlite":
        with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder:
            url = f"sqlite:///{Path(folder, 'store.db').as_posix()}{query}"
            open_store(url)
            yield url
    elif word in _KINDS:
        with _private_server(_KINDS[word], query) as url:
            yield url
    else:
        open_store(store)
        yield store


@contextmanager
def _private_server(kind: Kind, query: str) -> Iterator[str]:
    from flowfabric.store import open_store

    # Whatever is wrong with the options or the driver is said before a server is started.
    open_store(kind.sample + query)
    with kind.start() as server:
        print(
            f"started a private {kind.title}, removed when this command ends",
            file=sys.stderr,
            flush=True,
        )
        yield server.url + query


def _postgres() -> AbstractContextManager[Server]:
    from flowfabric.testing.servers import postgres_server

    return postgres_server()


def _valkey() -> AbstractContextManager[Server]:
    from flowfabric.testing.servers import valkey_server

    return valkey_server()


def _valkey_cluster() -> AbstractContextManager[Server]:
    from flowfabric.testing.servers import valkey_cluster

    return valkey_cluster()


_KINDS = {
    "postgres": Kind("Postgres 18", "postgresql://localhost/postgres", _postgres),
    "valkey": Kind("Valkey 9", "valkey://localhost", _valkey),
    "valkey-cluster": Kind(
        "Valkey 9 cluster of three", "valkey+cluster://localhost", _valkey_cluster
    ),
}
