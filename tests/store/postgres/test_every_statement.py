"""Every statement that the contract of stores makes Postgres run finds its rows by an index, in a
new, a big and a skewed schema, with and without statistics.

The statements are not listed anywhere: a run of the conformance suite says which ones there are.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowfabric.store.postgres import PostgresStore
from flowfabric.store.postgres.address import quoted
from flowfabric.store.postgres.driver import Connection
from tests.servers import NAMED_BY, SERVERS
from tests.store.postgres.desk import Desk
from tests.store.postgres.noting import NOTED, SCHEMA
from tests.store.postgres.test_flow_plans import fill
from tests.store.postgres.test_plans import TABLES as EXECUTIONS
from tests.store.postgres.test_plans import nodes

ROOT = Path(__file__).parents[3]
RUN = (
    *("tests/store/test_conformance.py", "tests/store/test_upkeep.py"),
    # What is asked for while an old snapshot keeps dead entries alive.
    *(f"tests/store/postgres/test_old_{name}.py" for name in ("lines", "snapshots", "timers")),
    *("-k", "postgres"),
)
GROWING = EXECUTIONS | {
    *("flow", "edge", "edge_group", "line", "entry", "document", "document_word")
}
# What an operator asks for when the statistics say nothing: how many rows a table has.
COUNTS = "SELECT count(*) FROM"

# A claim that is repeated because its answer was lost looks for its token among all that have a
# timer: rare, and no index is worth its writes.
AGAIN = "execution by execution_due"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    file = tmp_path_factory.mktemp("noted") / "statements.json"
    server = {NAMED_BY["postgres"]: SERVERS.url("postgres"), NOTED: str(file)}
    plugin = ("-p", "tests.store.postgres.noting")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, *RUN],
        cwd=ROOT,
        env={**os.environ, **server},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    found: list[str] = json.loads(file.read_text(encoding="utf-8"))
    return [text for text in found if SCHEMA in text and not text.startswith(COUNTS)]


def walks(plan: dict[str, object]) -> Iterator[str]:
    """Tables that are read from end to end, whatever the order."""
    for node in nodes(plan):
        table, kind = node.get("Relation Name"), str(node["Node Type"])
        is_blind = kind.startswith("Index") and "Index Cond" not in node
        walk = f"{table} by {node.get('Index Name')}"
        if table in GROWING and (kind == "Seq Scan" or is_blind) and walk != AGAIN:
            yield walk


async def planned(connection: Connection, text: str) -> dict[str, object]:
    """The plan for any values: as the store's connections are set, it is made without them."""
    values = ", ".join("NULL" for _ in set(re.findall(r"\$\d+", text)))
    await connection.execute(f"PREPARE asked AS {text}")
    how = f"EXPLAIN (FORMAT JSON) EXECUTE asked{f'({values})' if values else ''}"
    plan: dict[str, object] = json.loads(await connection.fetchval(how))[0]["Plan"]
    await connection.execute("DEALLOCATE asked")
    return plan


@pytest.mark.parametrize("kind", ["new", "large", "skewed", "skewed, not analyzed"])
async def test_no_statement_walks_a_table_that_grows(
    kind: str, desk: Desk, store: PostgresStore, texts: list[str]
) -> None:
    await fill(desk, kind)
    schema = quoted(desk.schema)

    async def all_walks(connection: Connection) -> dict[str, list[str]]:
        found = {
            text: list(walks(await planned(connection, text.replace(SCHEMA, schema))))
            for text in texts
        }
        return {text: walked for text, walked in found.items() if walked}

    assert len(texts) > 100
    assert await store._read(all_walks) == {}
