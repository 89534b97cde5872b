"""What a figure was measured on, and what the process used."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys

from flowfabric import __version__

_MIB = 1 << 20


def machine() -> str:
    """One line: without it a figure says nothing."""
    return (
        f"flowfabric {__version__}, Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}, {platform.platform(terse=True)}, "
        f"{os.cpu_count()} cores"
    )


def peak_rss_mb() -> float | None:
    """The most memory this process ever had; None where the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    # Kibibytes everywhere but on macOS, which counts bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / _MIB
