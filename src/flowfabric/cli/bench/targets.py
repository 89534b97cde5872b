"""Where a bench runs: the store that was named, or a private one that is gone afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from flowfabric.errors import InvalidInput
from flowfabric.store import open_store
from flowfabric.store.sqlite.file import check_place

_PREFIX = "flowfabric-bench-"


class Target(NamedTuple):
    """`folder` is on the same disk as the store, for what a measurement needs beside it."""

    url: str
    folder: Path | None
    options: str = ""

    def beside(self, name: str) -> str:
        """The URL of another store of the same kind, with the same options, still empty."""
        if self.folder is None:
            return self.url
        path = (self.folder / f"{name}.db").as_posix()
        return f"sqlite:///{path}{self.options}"


@contextmanager
def open_target(store: str) -> Iterator[Target]:
    kind, mark, query = store.partition("?")
    if kind in ("memory", "memory://"):
        open_store(f"memory://{mark}{query}")
        yield Target("memory://", None)
    elif kind == "sqlite":
        with _folder(None) as folder:
            private = Target("", folder, mark + query)
            open_store(private.beside("bench"))
            yield private._replace(url=private.beside("bench"))
    else:
        open_store(store)
        path = unquote(urlsplit(store).path[1:])
        check_place(path)
        with _folder(Path(path).absolute().parent) as folder:
            yield Target(store, folder, mark + query)


@contextmanager
def _folder(parent: Path | None) -> Iterator[Path]:
    try:
        folder = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise InvalidInput(
            f"nothing can be written beside the store: {error.strerror}",
            field="store",
            hint="choose a folder that you may write to",
        ) from error
    with folder:
        yield Path(folder.name)
