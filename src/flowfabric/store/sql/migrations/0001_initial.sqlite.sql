-- The first schema of the embedded store.
-- Rows are joined by the integer `n`, not by the long text id: new rows then go to the right edge
-- of every tree, which keeps the cost of a cycle flat however many executions are finished.

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE execution (
    n                  INTEGER PRIMARY KEY,
    id                 TEXT    NOT NULL UNIQUE,
    namespace          TEXT    NOT NULL,
    lane               TEXT    NOT NULL,
    kind               TEXT    NOT NULL,
    creator            TEXT    NOT NULL,
    created_ms         INTEGER NOT NULL,
    policy             TEXT    NOT NULL,
    rev                INTEGER NOT NULL DEFAULT 1,
    state              TEXT    NOT NULL,
    reason             TEXT    NOT NULL,
    attempt_state      TEXT    NOT NULL DEFAULT 'pending_first_attempt',
    priority           INTEGER NOT NULL DEFAULT 0,
    updated_ms         INTEGER NOT NULL,
    epoch              INTEGER NOT NULL DEFAULT 0,
    lease_token        TEXT    NOT NULL DEFAULT '',
    lease_until_ms     INTEGER,
    renewed_ms         INTEGER,
    worker             TEXT    NOT NULL DEFAULT '',
    attempt            INTEGER NOT NULL DEFAULT -1,
    attempt_kind       TEXT    NOT NULL DEFAULT 'initial',
    attempt_started_ms INTEGER,
    attempt_until_ms   INTEGER,
    next_attempt       INTEGER NOT NULL DEFAULT 0,
    next_kind          TEXT    NOT NULL DEFAULT 'initial',
    attempt_left_ms    INTEGER,
    not_before_ms      INTEGER,
    paused             INTEGER NOT NULL DEFAULT 0,
    deps_open          INTEGER NOT NULL DEFAULT 0,
    admission          TEXT    NOT NULL DEFAULT 'none',
    recheck_ms         INTEGER,
    lost               TEXT    NOT NULL DEFAULT 'none',
    retry_count        INTEGER NOT NULL DEFAULT 0,
    reclaim_count      INTEGER NOT NULL DEFAULT 0,
    replay_count       INTEGER NOT NULL DEFAULT 0,
    deadline_ms        INTEGER,
    due_ms             INTEGER,
    failures           INTEGER NOT NULL DEFAULT 0,
    parked             TEXT    NOT NULL DEFAULT '',
    started_ms         INTEGER,
    ended_ms           INTEGER,
    outcome_detail     TEXT    NOT NULL DEFAULT '',
    outcome_category   TEXT    NOT NULL DEFAULT '',
    progress_pct       INTEGER,
    progress_message   TEXT
);

CREATE INDEX execution_ready ON execution (namespace, lane, priority DESC, created_ms, id)
    WHERE state IN ('waiting', 'orphaned', 'revoked');

CREATE INDEX execution_due ON execution (due_ms, id) WHERE due_ms IS NOT NULL;

CREATE TABLE payload (
    n    INTEGER PRIMARY KEY,
    body BLOB NOT NULL
);

CREATE TABLE attempt (
    n          INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    kind       TEXT    NOT NULL,
    lifecycle  TEXT    NOT NULL,
    worker     TEXT    NOT NULL,
    epoch      INTEGER NOT NULL,
    started_ms INTEGER,
    ended_ms   INTEGER,
    detail     TEXT    NOT NULL,
    category   TEXT    NOT NULL,
    result     BLOB,
    PRIMARY KEY (n, attempt)
) WITHOUT ROWID;

CREATE TABLE tag (
    n     INTEGER NOT NULL,
    key   TEXT    NOT NULL,
    value TEXT    NOT NULL,
    PRIMARY KEY (n, key)
) WITHOUT ROWID;

CREATE INDEX tag_value ON tag (key, value, n);

CREATE TABLE idempotency (
    namespace TEXT    NOT NULL,
    key       TEXT    NOT NULL,
    id        TEXT    NOT NULL,
    digest    TEXT    NOT NULL,
    until_ms  INTEGER NOT NULL,
    PRIMARY KEY (namespace, key)
) WITHOUT ROWID;

CREATE TABLE lane (
    name  TEXT PRIMARY KEY,
    state TEXT    NOT NULL DEFAULT 'active',
    rev   INTEGER NOT NULL DEFAULT 1
) WITHOUT ROWID;

CREATE TABLE log (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    n       INTEGER NOT NULL,
    at_ms   INTEGER NOT NULL,
    kind    TEXT    NOT NULL,
    state   TEXT    NOT NULL,
    attempt INTEGER NOT NULL,
    epoch   INTEGER NOT NULL,
    detail  TEXT    NOT NULL
);

CREATE INDEX log_execution ON log (n, seq);
