"""Named statements from the `.sql` files beside this module.

A statement begins with `-- name: <name>@<dialect>` and one sentence. Placeholders in braces stand
for lists whose length is known only at run time; they are filled with column names from the model
and with question marks, never with values. What several statements share is a part: it is named
`part_…`, is no statement by itself, and stands where they name it in braces.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

_MARK = "-- name: "
_PART = "part_"


@cache
def statements(dialect: str) -> dict[str, str]:
    """Every statement of a dialect by its name."""
    found: dict[str, str] = {}
    for file in sorted(files("flowfabric.store.sql").iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".sql"):
            found |= _parse(file.read_text(encoding="utf-8"), dialect)
    return _with_parts(found)


def _with_parts(found: dict[str, str]) -> dict[str, str]:
    parts = {name: bare(text) for name, text in found.items() if name.startswith(_PART)}
    whole = {name: text for name, text in found.items() if name not in parts}
    for part, shared in parts.items():
        whole = {name: text.replace(f"{{{part}}}", shared) for name, text in whole.items()}
    return whole


def bare(text: str) -> str:
    """Without the sentences for people."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("--"))


def _parse(text: str, dialect: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for block in text.split(_MARK)[1:]:
        header, _, body = block.partition("\n")
        name, _, variant = header.strip().partition("@")
        if variant == dialect:
            found[name] = body.strip()
    return found


def migrations(dialect: str) -> list[str]:
    """The schema changes of a dialect, in order; the version of a store is how many it has."""
    folder = files("flowfabric.store.sql.migrations")
    return [
        folder.joinpath(f"{name}.{dialect}.sql").read_text(encoding="utf-8")
        for name in migration_names(dialect)
    ]


def migration_names(dialect: str) -> list[str]:
    folder = files("flowfabric.store.sql.migrations")
    ending = f".{dialect}.sql"
    return sorted(
        file.name.removesuffix(ending) for file in folder.iterdir() if file.name.endswith(ending)
    )
