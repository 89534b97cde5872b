"""Notes every statement that a run of tests sends to Postgres, without the name of its schema.

A plugin of pytest, `-p tests.store.postgres.noting`; NOTED names the file. No test lives here.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from flowfabric.store.postgres.driver import Connection, Record

NOTED = "FLOWFABRIC_NOTED_STATEMENTS"
SCHEMA = "{schema}"
_NAMED = re.compile(r'"?\btest_[0-9a-f]{16,24}\b"?')
_texts: set[str] = set()
_rightly = Connection.ask


async def _noted(connection: Connection, text: str, *arguments: object) -> list[Record]:
    _texts.add(_NAMED.sub(SCHEMA, text))
    return await _rightly(connection, text, *arguments)


def pytest_configure() -> None:
    # For the whole run, which has a process of its own: no fixture lives that long.
    Connection.ask = _noted  # type: ignore[assignment, method-assign]


def pytest_unconfigure() -> None:
    Path(os.environ[NOTED]).write_text(json.dumps(sorted(_texts)), encoding="utf-8")
