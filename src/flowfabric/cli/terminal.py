"""Where the command line prints: when it is a terminal, and how text gets there unharmed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from flowfabric.printing import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


# An id with a partition of three digits.
ID_WIDTH = 40
FILE_WIDTH = 240


def is_terminal(out: TextIO) -> bool:
    return out.isatty() and os.environ.get("TERM") != "dumb"


def print_json(whole: object) -> None:
    """In ASCII: a character that turns around the order of reading would in a terminal."""
    import json

    import msgspec

    print(json.dumps(msgspec.to_builtins(whole), separators=(",", ":")))


def console_for(out: TextIO) -> Console:
    """Colours only in a terminal that wants them; text is never read as markup."""
    from rich.console import Console

    is_shown = is_terminal(out)
    return Console(
        file=out,
        force_terminal=is_shown,
        # Lines that go into a file or another program are not folded at some terminal's width.
        width=None if is_shown or "COLUMNS" in os.environ else FILE_WIDTH,
        markup=False,
        highlight=False,
        emoji=False,
    )


def table_of(
    titles: Sequence[str], rows: Iterable[Sequence[str]], *, whole: Sequence[str] = ()
) -> Table:
    """Every text stays in its cell and in its line. Columns named by `whole` are never shortened:
    ids are there to be copied."""
    from rich import box
    from rich.table import Table

    table = Table(*map(one_line, titles), box=box.SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        if column.header in whole:
            column.no_wrap, column.overflow, column.min_width = True, "fold", ID_WIDTH
    for row in rows:
        table.add_row(*map(one_line, row))
    return table
