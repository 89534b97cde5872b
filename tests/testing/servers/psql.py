"""Asks a private Postgres with the client of its own wheel."""

from __future__ import annotations

import subprocess

from flowfabric.testing.servers.postgres import PostgresServer
from flowfabric.testing.servers.wheels import postgres_install


def ask(server: PostgresServer, statement: str, *, url: str | None = None) -> str:
    """The first column of the answer, or what psql says is wrong."""
    psql = postgres_install(server.version) / "bin" / "psql"
    ran = subprocess.run(
        [str(psql), "--no-psqlrc", "-tA", "-c", statement, url or server.url],
        capture_output=True,
        text=True,
        check=False,
        env={"LC_ALL": "C"},
    )
    return (ran.stdout or ran.stderr).strip()
