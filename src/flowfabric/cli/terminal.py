"""Where the command line prints: when it is a terminal, and how text gets there unharmed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console


def is_terminal(out: TextIO) -> bool:
    return out.isatty() and os.environ.get("TERM") != "dumb"


def console_for(out: TextIO) -> Console:
    """Colours only in a terminal that wants them; text is never read as markup."""
    from rich.console import Console

    return Console(
        file=out, force_terminal=is_terminal(out), markup=False, highlight=False, emoji=False
    )
