-- Flows: the records of a graph, and the outbox of what is to be done about it.
-- Members are executions that name their flow, and rows without a flow are in none of the new indexes.

ALTER TABLE execution ADD COLUMN flow TEXT NOT NULL DEFAULT '';

CREATE INDEX execution_flow ON execution (flow, id) WHERE flow <> '';

CREATE TABLE flow (
    id             TEXT    PRIMARY KEY,
    namespace      TEXT    NOT NULL,
    name           TEXT    NOT NULL,
    creator        TEXT    NOT NULL,
    created_ms     INTEGER NOT NULL,
    digest         TEXT    NOT NULL,
    rev            INTEGER NOT NULL,
    graph_revision INTEGER NOT NULL,
    state          TEXT    NOT NULL,
    is_open        INTEGER NOT NULL,
    total          INTEGER NOT NULL,
    edges          INTEGER NOT NULL,
    completed      INTEGER NOT NULL,
    failed         INTEGER NOT NULL,
    cancelled      INTEGER NOT NULL,
    expired        INTEGER NOT NULL,
    skipped        INTEGER NOT NULL,
    cancel_policy  TEXT    NOT NULL,
    cancel_reason  TEXT    NOT NULL,
    cancelled_ms   INTEGER,
    deadline_ms    INTEGER,
    due_ms         INTEGER,
    busy_until_ms  INTEGER NOT NULL,
    failures       INTEGER NOT NULL,
    next_try_ms    INTEGER NOT NULL,
    parked         TEXT    NOT NULL,
    updated_ms     INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX flow_due ON flow (due_ms, id) WHERE due_ms IS NOT NULL;

CREATE TABLE edge (
    flow        TEXT    NOT NULL,
    upstream    TEXT    NOT NULL,
    downstream  TEXT    NOT NULL,
    grp         TEXT    NOT NULL,
    kind        TEXT    NOT NULL,
    position    INTEGER NOT NULL,
    argument    TEXT    NOT NULL,
    created_ms  INTEGER NOT NULL,
    creator     TEXT    NOT NULL,
    state       TEXT    NOT NULL,
    generation  INTEGER NOT NULL,
    attempt     INTEGER NOT NULL,
    outcome     TEXT    NOT NULL,
    resolved_ms INTEGER,
    PRIMARY KEY (downstream, grp, upstream)
) WITHOUT ROWID;

CREATE INDEX edge_leaving ON edge (upstream, downstream, grp);

CREATE TABLE edge_group (
    flow          TEXT    NOT NULL,
    downstream    TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    joins         TEXT    NOT NULL,
    k             INTEGER NOT NULL,
    on_satisfied  TEXT    NOT NULL,
    on_impossible TEXT    NOT NULL,
    sealed        INTEGER NOT NULL,
    state         TEXT    NOT NULL,
    n             INTEGER NOT NULL,
    succeeded     INTEGER NOT NULL,
    failed        INTEGER NOT NULL,
    skipped       INTEGER NOT NULL,
    decided_ms    INTEGER,
    cancel_owed   INTEGER NOT NULL,
    cancel_reason TEXT    NOT NULL,
    owed          TEXT    NOT NULL,
    PRIMARY KEY (downstream, name)
) WITHOUT ROWID;

CREATE TABLE line (
    flow        TEXT    NOT NULL,
    at_ms       INTEGER NOT NULL,
    id          TEXT    NOT NULL,
    kind        TEXT    NOT NULL,
    execution   TEXT    NOT NULL,
    generation  INTEGER NOT NULL,
    about       TEXT    NOT NULL,
    failures    INTEGER NOT NULL,
    next_try_ms INTEGER NOT NULL,
    PRIMARY KEY (flow, at_ms, id)
) WITHOUT ROWID;
