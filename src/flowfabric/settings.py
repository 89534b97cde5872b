"""Settings of a project: which store and namespace apps and commands use when none is named.

`FLOWFABRIC_STORE` and `FLOWFABRIC_NAMESPACE` come first, then `flowfabric.toml` in the current
folder or the nearest one above it, then the defaults. A store URL may hold a password: no error
here shows a value.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import msgspec

from flowfabric.errors import InvalidInput

DEFAULT_STORE = "sqlite:///flowfabric.db"
DEFAULT_NAMESPACE = "default"
FILE_NAME = "flowfabric.toml"
STORE_VARIABLE = "FLOWFABRIC_STORE"
NAMESPACE_VARIABLE = "FLOWFABRIC_NAMESPACE"
# How help texts and errors name where a store comes from.
STORE_SOURCES = f"{STORE_VARIABLE}, `store` in {FILE_NAME}, else {DEFAULT_STORE}"
NAMESPACE_SOURCES = f"{NAMESPACE_VARIABLE}, `namespace` in {FILE_NAME}, else {DEFAULT_NAMESPACE}"

_RELATIVE = "sqlite:///"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `flowfabric.toml` may say."""

    store: str | None = None
    namespace: str | None = None


def default_store() -> str:
    return os.environ.get(STORE_VARIABLE) or _from_file().store or DEFAULT_STORE


def default_namespace() -> str:
    return os.environ.get(NAMESPACE_VARIABLE) or _from_file().namespace or DEFAULT_NAMESPACE


def _from_file() -> Settings:
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (found := folder / FILE_NAME).is_file():
            return _read(found)
    return Settings()


def _read(file: Path) -> Settings:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        settings = msgspec.convert(content, Settings)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InvalidInput(
            f"{file} cannot be read: {error}",
            field=FILE_NAME,
            hint='it may set store = "sqlite:///flows.db" and namespace = "default"',
        ) from None
    return msgspec.structs.replace(settings, store=_beside(file, settings.store))


def _beside(file: Path, store: str | None) -> str | None:
    """A relative SQLite path counts from the folder of the settings, wherever a command runs."""
    if store is None or not store.startswith(_RELATIVE) or store.startswith(f"{_RELATIVE}/"):
        return store
    return f"{_RELATIVE}{file.parent.as_posix()}/{store.removeprefix(_RELATIVE)}"
