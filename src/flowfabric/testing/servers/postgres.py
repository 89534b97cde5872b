"""A private Postgres: initialised in a temporary folder, reached through a port of this machine.

Postgres refuses to run as root, so root runs it as `nobody`, from a copy of the program that
`nobody` can reach wherever the wheel is installed. What is written is synchronised to disk as in
production; a test that does not care can say so in its settings.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import secrets
import signal
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from flowfabric.errors import InvalidInput, StoreUnavailable
from flowfabric.testing.servers.ports import HOST, free_port
from flowfabric.testing.servers.process import (
    START_SECONDS,
    Account,
    Keeper,
    Program,
    ServerProcess,
)
from flowfabric.testing.servers.wheels import copy_postgres, postgres_install

USER = "flowfabric"
DATABASE = "postgres"
_PORT_TRIES = 5
_IPC_RMID = 0
_NONE: Mapping[str, str] = MappingProxyType({})

_SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "200",
    "fsync": "on",
    "synchronous_commit": "on",
    "logging_collector": "off",
    "timezone": "UTC",
    # In the data folder, so that nothing stays in the machine's shared memory after a kill.
    "dynamic_shared_memory_type": "mmap",
}


class PostgresServer:
    """Stopping, killing and starting again keep the port and the data.

    `file_limit`, from the next start on: how large its files may become, as on a full disk.
    """

    file_limit: int | None = None

    def __init__(
        self,
        keeper: Keeper,
        version: int,
        settings: Mapping[str, str],
        primary: PostgresServer | None = None,
    ) -> None:
        self.version = version
        self.port = free_port()
        self.password: str = primary.password if primary else secrets.token_hex(12)
        self._account = _account()
        self._folder = keeper.folder
        self._data = keeper.folder / "data"
        self._settings = _SETTINGS | {_checked(name): value for name, value in settings.items()}
        self._process = ServerProcess(keeper, "postgres")
        self._install = postgres_install(version)
        if self._account is not None:
            keeper.folder.chmod(0o711)
            self._install = copy_postgres(self._install, keeper.folder / "program")
        self._data.mkdir(0o700)
        if self._account is not None:
            os.chown(self._data, *self._account)
        if primary is None:
            self._initialise(ServerProcess(keeper, "initdb"))
        else:
            self._copy(ServerProcess(keeper, "copy"), primary)

    @property
    def url(self) -> str:
        return f"postgresql://{USER}:{self.password}@{HOST}:{self.port}/{DATABASE}"

    @property
    def pid(self) -> int | None:
        """The process to signal; None while it does not run."""
        return self._process.pid

    @property
    def log(self) -> Path:
        return self._process.log

    def start(self) -> None:
        if self._process.pid is not None:
            return
        self._process.start(
            Program(
                title=f"the private Postgres {self.version}",
                folder=self._folder,
                argv=[
                    str(self._install / "bin" / "postgres"),
                    *("-D", str(self._data), "-p", str(self.port)),
                ],
                account=self._account,
                # Fast: open transactions are rolled back. Immediate: nothing is waited for.
                stop_signal=signal.SIGINT,
                end_signal=signal.SIGQUIT,
                file_limit=self.file_limit,
            )
        )
        self._process.wait_until(self._is_ready)

    def start_on_a_free_port(self) -> None:
        """For the first start: another program may have taken the port meanwhile."""
        for attempt in range(1, _PORT_TRIES + 1):
            try:
                return self.start()
            except StoreUnavailable:
                in_use = "already in use" in self._process.last_lines()
                if attempt == _PORT_TRIES or not in_use:
                    raise
                self.port = free_port()
        return None

    def stop(self) -> None:
        """Shut down in order: open transactions are rolled back, clients are sent away."""
        self._process.stop()

    def kill(self) -> None:
        """SIGKILL to the server and all its processes at once, as if the power had failed."""
        segment = self._segment()
        self._process.kill()
        if segment is not None:
            ctypes.CDLL(None).shmctl(segment, _IPC_RMID, None)

    def restart(self) -> None:
        self.stop()
        self.start()

    def _initialise(self, process: ServerProcess) -> None:
        secret = self._folder / "password"
        secret.touch(0o600)
        secret.write_text(self.password, encoding="ascii")
        if self._account is not None:
            os.chown(secret, *self._account)
        self._run(process, "initdb", self._initdb_argv(secret))
        secret.unlink()
        with (self._data / "postgresql.conf").open("a", encoding="utf-8") as configuration:
            for name, value in self._settings.items():
                configuration.write(f"{name} = '{_quoted(value)}'\n")

    def _copy(self, process: ServerProcess, primary: PostgresServer) -> None:
        """All that the primary has; from its start on this one follows it, as a standby."""
        argv = [
            str(self._install / "bin" / "pg_basebackup"),
            *("--dbname", primary.url, "--pgdata", str(self._data), "--write-recovery-conf"),
            *("--checkpoint", "fast", "--no-sync"),
        ]
        self._run(process, "pg_basebackup", argv)

    def _run(self, process: ServerProcess, title: str, argv: list[str]) -> None:
        process.start(Program(title, self._folder, argv, account=self._account))
        code = process.wait(START_SECONDS)
        if code != 0:
            raise process.failed(f"ended with code {code}")

    def _initdb_argv(self, secret: Path) -> list[str]:
        return [
            str(self._install / "bin" / "initdb"),
            *("--pgdata", str(self._data), "--username", USER, "--pwfile", str(secret)),
            *("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C"),
            *("--no-sync", "--no-instructions"),
        ]

    def _is_ready(self) -> bool:
        lines = self._lock_lines()
        is_new = len(lines) > 7 and lines[0] == str(self.pid)
        return is_new and lines[7].strip() in ("ready", "standby")

    def _segment(self) -> int | None:
        """The shared memory that only an orderly end would give back."""
        fields = self._lock_lines()[6:7]
        return int(fields[0].split()[1]) if fields and fields[0].split()[1:] else None

    def _lock_lines(self) -> list[str]:
        """What a running server says about itself: its process, its memory, its readiness."""
        with contextlib.suppress(OSError):
            return (self._data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        return []


@contextmanager
def postgres_server(
    version: int = 18, settings: Mapping[str, str] = _NONE
) -> Iterator[PostgresServer]:
    """A running Postgres 18 or 16 that is gone afterwards, with all that it wrote."""
    postgres_install(version)
    with _running(version, settings) as server:
        yield server


@contextmanager
def postgres_standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    """A running copy that follows the primary and only reads, until somebody promotes it."""
    with _running(primary.version, primary=primary) as standby:
        yield standby


@contextmanager
def _running(
    version: int, settings: Mapping[str, str] = _NONE, primary: PostgresServer | None = None
) -> Iterator[PostgresServer]:
    with Keeper(_reachable_folder()) as keeper:
        server = PostgresServer(keeper, version, settings, primary)
        server.start_on_a_free_port()
        try:
            yield server
        finally:
            server.stop()


def _account() -> Account | None:
    if os.geteuid() != 0:
        return None
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise StoreUnavailable(
            "Postgres does not run as root, and there is no account `nobody` to run it as",
            hint="run this as another user",
        ) from None
    return Account(nobody.pw_uid, nobody.pw_gid)


def _reachable_folder() -> str:
    """A folder for temporary files that others may pass through, when others run the server."""
    usual = tempfile.gettempdir()
    if os.geteuid() != 0:
        return usual
    for folder in (usual, "/tmp", "/var/tmp"):  # noqa: S108
        path = Path(folder).resolve()
        if all(place.stat().st_mode & stat.S_IXOTH for place in (path, *path.parents)):
            return folder
    raise StoreUnavailable(
        f"no user but root can reach {usual}, and Postgres does not run as root",
        hint="set TMPDIR to a folder that everybody can pass through",
    )


def _checked(name: str) -> str:
    if not name.replace(".", "_").isidentifier():
        raise InvalidInput(f"{name!r} is not a setting of Postgres", field="settings")
    return name


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "''")
