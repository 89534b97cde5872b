"""Trouble with a server, in our words: what is wrong and what to do. No message holds a password.

Also which trouble leaves nothing behind and may simply be tried again.
"""

from __future__ import annotations

from flowfabric.errors import FlowFabricError, StoreMismatch, StoreUnavailable
from flowfabric.store.postgres.driver import Connection, InterfaceError, PostgresError, errors

VERSION_FLOOR = 14

# The server is there, but not for us, or not yet.
NOT_YET: tuple[type[Exception], ...] = (
    errors.CannotConnectNowError,
    errors.TooManyConnectionsError,
    errors.ConnectionDoesNotExistError,
    ConnectionError,
)
# The connection is gone: what was sent on it may have happened or not.
LOST: tuple[type[Exception], ...] = (
    errors.PostgresConnectionError,
    errors.AdminShutdownError,
    errors.CrashShutdownError,
    errors.DatabaseDroppedError,
    errors.IdleSessionTimeoutError,
    *NOT_YET,
    InterfaceError,
    # The driver was told of the end while it began to send.
    errors.InternalClientError,
    OSError,
    TimeoutError,
    EOFError,
)
# The statement undid itself and left nothing behind: somebody was faster. That a record is there
# before us is seen when the statement begins, or it was written since.
UNDONE: tuple[type[Exception], ...] = (
    errors.SerializationError,
    errors.UniqueViolationError,
    errors.DeadlockDetectedError,
)
# The statement does not fit the tables, or what it gave back is not what was prepared.
STRANGE: tuple[type[Exception], ...] = (
    errors.SyntaxOrAccessError,
    errors.FeatureNotSupportedError,
    errors.IntegrityConstraintViolationError,
)
DRIVER_ERRORS: tuple[type[Exception], ...] = (
    PostgresError,
    InterfaceError,
    errors.InternalClientError,
    OSError,
    EOFError,
)

_HINTS: tuple[tuple[type[Exception], type[FlowFabricError], str, str], ...] = (
    (
        errors.InvalidPasswordError,
        StoreUnavailable,
        "auth",
        "check the user and the password in the URL",
    ),
    (
        errors.InvalidAuthorizationSpecificationError,
        StoreUnavailable,
        "auth",
        "check the user in the URL and the server's pg_hba.conf",
    ),
    (
        errors.InvalidCatalogNameError,
        StoreMismatch,
        "store_mismatch",
        "create the database first, or correct its name in the URL",
    ),
    (
        errors.InsufficientPrivilegeError,
        StoreMismatch,
        "store_mismatch",
        "grant the user CREATE on the database, or create the schema and give it to the user",
    ),
    (
        errors.ReadOnlySQLTransactionError,
        StoreUnavailable,
        "transport",
        "connect to the primary server",
    ),
    (
        errors.UndefinedTableError,
        StoreMismatch,
        "store_mismatch",
        "the schema is not set up or was dropped: run `ff db migrate`",
    ),
    (
        errors.InvalidSchemaNameError,
        StoreMismatch,
        "store_mismatch",
        "the schema is not set up or was dropped: run `ff db migrate`",
    ),
    (
        errors.UndefinedColumnError,
        StoreMismatch,
        "store_mismatch",
        "the schema has tables of another program: choose another with ?schema=name",
    ),
    (
        errors.InvalidSQLStatementNameError,
        StoreMismatch,
        "store_mismatch",
        "behind a transaction pooler, add ?pooler=transaction to the URL",
    ),
    (
        errors.DuplicatePreparedStatementError,
        StoreMismatch,
        "store_mismatch",
        "behind a transaction pooler, add ?pooler=transaction to the URL",
    ),
    (
        errors.ProtocolViolationError,
        StoreMismatch,
        "store_mismatch",
        "behind a transaction pooler, add ?pooler=transaction to the URL",
    ),
    (errors.DiskFullError, StoreUnavailable, "transport", "free space on the server's disk"),
    (
        errors.TooManyConnectionsError,
        StoreUnavailable,
        "transport",
        "raise max_connections, or put a pooler in between",
    ),
    (
        errors.InsufficientResourcesError,
        StoreUnavailable,
        "transport",
        "check the memory and disk of the server",
    ),
    (
        errors.UndefinedFileError,
        StoreUnavailable,
        "transport",
        "files of the server are missing; check its log",
    ),
)


def is_cut(cause: BaseException | None) -> bool:
    """Whether the server was there a moment ago, or is about to be: what can be repeated is worth
    repeating. One that cannot be reached at all is not waited for."""
    kinds = (
        errors.CannotConnectNowError,
        errors.ConnectionDoesNotExistError,
        errors.AdminShutdownError,
        errors.CrashShutdownError,
        ConnectionError,
    )
    return isinstance(cause, kinds) and not isinstance(cause, ConnectionRefusedError)


def unavailable(error: Exception, shown: str) -> FlowFabricError:
    """The error that a caller sees, by what the caller can do about it."""
    for kind, made, code, hint in _HINTS:
        if isinstance(error, kind):
            return made(_said(error, shown), code=code, hint=hint)
    hint = f"is Postgres running at {shown}?" if isinstance(error, LOST) else ""
    return StoreUnavailable(_said(error, shown), hint=hint)


def _said(error: Exception, shown: str) -> str:
    if isinstance(error, TimeoutError):
        return f"{shown} did not answer in time"
    if isinstance(error, OSError):
        return f"{shown} cannot be reached: {error.strerror or error}"
    return f"{shown}: {str(error).splitlines()[0] if str(error) else type(error).__name__}"


def strange_server(problem: str, shown: str) -> FlowFabricError:
    """What the driver says of a version that it cannot read; anything else may hold the URL."""
    is_version = problem.startswith("Unable to parse Postgres version")
    said = problem if is_version else "the URL or an answer of the server cannot be read"
    return StoreMismatch(f"{shown}: {said}", hint=f"use Postgres {VERSION_FLOOR} or newer")


def version_of(connection: Connection) -> int:
    return connection.get_server_version().major


def require_usable(connection: Connection, shown: str) -> None:
    """Refuse a server that is too old, speaks another encoding, or only reads."""
    version = version_of(connection)
    if version < VERSION_FLOOR:
        raise StoreMismatch(
            f"{shown} is Postgres {version}", hint=f"use Postgres {VERSION_FLOOR} or newer"
        )
    settings = connection.get_settings()
    encoding = getattr(settings, "server_encoding", "UTF8")
    if encoding != "UTF8":
        raise StoreMismatch(
            f"{shown} has the encoding {encoding}",
            hint="create the database with ENCODING 'UTF8'",
        )
    if getattr(settings, "in_hot_standby", "off") == "on":
        raise StoreUnavailable(
            f"{shown} is a read-only standby", hint="connect to the primary server"
        )
    if getattr(settings, "default_transaction_read_only", "off") == "on":
        raise StoreUnavailable(
            f"{shown} is read-only: default_transaction_read_only is on",
            hint="switch it off for this user or database, or connect to another server",
        )
