"""The version of this package, as it is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    try:
        return version("flowfabric")
    except PackageNotFoundError:
        return "0+unknown"


VERSION = _installed()
