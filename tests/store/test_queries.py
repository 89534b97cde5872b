"""Named statements: how they are read from their files, and that each one fits the schema."""

from __future__ import annotations

import json
import re
import sqlite3

import msgspec
import pytest

from flowfabric.core.model import Execution
from flowfabric.store import queries
from flowfabric.store.columns import ATTEMPT_COLUMNS, COLUMNS, INSERT_COLUMNS
from flowfabric.store.queries import migrations, statements
from flowfabric.store.sqlite.flow_rows import EDGE_NAMES, FLOW_NAMES, GROUP_NAMES, LINE_NAMES
from flowfabric.store.sqlite.rows import row_marks

FILE = """\
-- Prose before the first statement is not a statement.

-- name: take@sqlite
-- Takes rows.
SELECT 1

-- name: take@other
-- Differs: takes them twice.
SELECT 2

-- name: give@other
-- Gives rows.
SELECT '-- not a name'
FROM somewhere
"""


def test_statements_are_chosen_by_dialect() -> None:
    assert queries._parse(FILE, "sqlite") == {"take": "-- Takes rows.\nSELECT 1"}
    other = queries._parse(FILE, "other")
    assert list(other) == ["take", "give"]
    assert other["take"].endswith("SELECT 2")
    assert other["give"].endswith("FROM somewhere")


def test_an_unknown_dialect_has_no_statements() -> None:
    assert statements("cobol") == {}
    assert migrations("cobol") == []


def test_statements_are_read_once() -> None:
    assert statements("sqlite") is statements("sqlite")


WIDTHS = {
    "execution_insert": len(INSERT_COLUMNS),
    "payload_insert": 2,
    "execution_patch_held": 4 + 1,
    "execution_patch_held_alike": 4,
    "execution_patch_seen": 2 + 1,
    "execution_patch_seen_alike": 2,
    "log_append": 3,
    "tag_upsert": 3,
    "attempt_upsert": 1 + len(ATTEMPT_COLUMNS),
    "idempotency_upsert": 5,
    "flow_insert": len(FLOW_NAMES),
    "flow_patch": 2 + 1,
    "line_upsert": len(LINE_NAMES),
    "line_delete": 3,
    "edge_insert": len(EDGE_NAMES),
    "edge_resolve": 9,
    "group_upsert": len(GROUP_NAMES),
    "document_put": 7,
    "document_delete": 3,
    "document_word_delete": 3,
    "document_word_insert": 4,
    "entry_append": 8,
    "entry_insert": 5,
}

NAMES = {
    "attempt_upsert": ATTEMPT_COLUMNS,
    "execution_insert": INSERT_COLUMNS,
    "flow_insert": FLOW_NAMES,
    "line_upsert": LINE_NAMES,
    "edge_insert": EDGE_NAMES,
    "group_upsert": GROUP_NAMES,
}
READ = {"flow": FLOW_NAMES, "line": LINE_NAMES, "edge": EDGE_NAMES, "group": GROUP_NAMES}


def filled(name: str) -> str:
    """The statement with its lists, for one row, and with plain marks."""
    text = re.sub(r"\?\d+", "?", statements("sqlite")[name])
    names = NAMES.get(name, ("state",))
    heads = ", ".join(f"e.{column}" for column in READ.get(name.split("_", maxsplit=1)[0], COLUMNS))
    return text.format(
        rows=row_marks(WIDTHS.get(name, 1), 1),
        columns=heads,
        names=", ".join(names),
        more="".join(f", {column}" for column in names),
        values=", ".join(f"new.{column}" for column in names),
        patch="state = new.state, ",
        one="(?, ?)",
        alike="state = (SELECT state FROM clock), ",
    )


@pytest.mark.parametrize("name", statements("sqlite"))
def test_every_statement_fits_the_schema(schema: sqlite3.Connection, name: str) -> None:
    sql = filled(name)
    schema.execute(f"EXPLAIN {sql}", [None] * sql.count("?"))


def test_the_schema_has_a_column_for_every_field_of_a_head(schema: sqlite3.Connection) -> None:
    columns = [row[1] for row in schema.execute("PRAGMA table_info(execution)")]
    assert sorted(columns) == sorted([*Execution.__struct_fields__, "n"])


def test_a_new_row_gets_the_defaults_of_the_record(schema: sqlite3.Connection) -> None:
    """What an insert does not name must start as the core thinks it does."""
    schema.execute(filled("execution_insert"), ["x"] * len(INSERT_COLUMNS))
    loaded = schema.execute(filled("execution_load"), ['["x"]']).fetchone()[0]
    stored = json.loads(loaded)[0]
    fields = {field.name: field for field in msgspec.structs.fields(Execution)}
    later = dict(zip(COLUMNS, stored, strict=True))
    for name in set(COLUMNS) - set(INSERT_COLUMNS):
        assert later[name] == fields[name].default, name
