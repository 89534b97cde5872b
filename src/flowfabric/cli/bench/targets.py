"""Where a bench runs: the store that was named, and others of its kind beside it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from flowfabric.cli.stores import named_store
from flowfabric.errors import InvalidInput
from flowfabric.store import open_store
from flowfabric.store.sqlite.file import check_place
from flowfabric.store.upkeep import Upkeep

_PREFIX = "flowfabric-bench-"
# The option by which two stores of a kind live on one server, and what it is by default.
_OPTIONS = {
    "postgresql": ("schema", "flowfabric"),
    "postgres": ("schema", "flowfabric"),
    "valkey": ("prefix", "ff"),
    "valkeys": ("prefix", "ff"),
    "redis": ("prefix", "ff"),
    "rediss": ("prefix", "ff"),
}


class Target(NamedTuple):
    """`folder` is on the same disk as the store, for what a measurement needs beside it; only a
    store that is a file has one."""

    url: str
    folder: Path | None
    options: str = ""

    @property
    def kind(self) -> str:
        return self.url.partition(":")[0].partition("+")[0]

    def beside(self, name: str) -> str:
        """The URL of another store of the same kind, with the same options, still empty."""
        if self.folder is not None:
            path = (self.folder / f"{name}.db").as_posix()
            return f"sqlite:///{path}{self.options}"
        if self.kind not in _OPTIONS:
            return self.url
        option, default = _OPTIONS[self.kind]
        parts = urlsplit(self.url)
        options = dict(parse_qsl(parts.query))
        options[option] = f"{options.get(option, default)}_{name}".replace("-", "_")
        return parts._replace(query=urlencode(options)).geturl()


def require_shared(target: Target) -> None:
    """For what needs several processes on one store."""
    if target.kind == "memory":
        raise InvalidInput(
            "other processes cannot open memory://", field="store", hint="use sqlite or a server"
        )


async def drop_beside(url: str) -> None:
    """Leave nothing of a store that was made for a measurement. Nobody may have it open."""
    store = open_store(url)
    if isinstance(store, Upkeep):
        await store.drop()
    await store.close()


@contextmanager
def open_target(store: str) -> Iterator[Target]:
    with named_store(store) as url:
        parts = urlsplit(url)
        if parts.scheme != "sqlite":
            yield Target(url, None)
            return
        path = unquote(parts.path[1:])
        check_place(path)
        with _folder(Path(path).absolute().parent) as folder:
            yield Target(url, folder, f"?{parts.query}" if parts.query else "")


@contextmanager
def _folder(parent: Path) -> Iterator[Path]:
    try:
        folder = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise InvalidInput(
            f"cannot create a folder beside the store: {error.strerror}",
            field="store",
            hint="choose a store in a folder that you may write to",
        ) from error
    with folder:
        yield Path(folder.name)
