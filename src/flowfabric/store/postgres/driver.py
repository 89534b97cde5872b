"""The one place that imports asyncpg: what the other modules of this store use of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
from asyncpg import exceptions as errors

if TYPE_CHECKING:
    Record = asyncpg.Record
    Connection = asyncpg.Connection[asyncpg.Record]
else:
    Record = asyncpg.Record
    Connection = asyncpg.Connection

PostgresError = asyncpg.PostgresError
InterfaceError = asyncpg.InterfaceError
connect = asyncpg.connect

__all__ = ["Connection", "InterfaceError", "PostgresError", "Record", "connect", "errors"]
