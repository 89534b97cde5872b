-- Edges and groups are kept by flow. Ids of executions begin with their partition, so that what was
-- submitted at one time lay far apart, and each step of each flow wrote pages of its own. Ids of
-- flows are in the order of time.

CREATE TABLE edge_by_flow (
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
    PRIMARY KEY (flow, downstream, grp, upstream)
) WITHOUT ROWID;

INSERT INTO edge_by_flow SELECT * FROM edge;

DROP TABLE edge;

ALTER TABLE edge_by_flow RENAME TO edge;

CREATE INDEX edge_leaving ON edge (flow, upstream, downstream, grp);

CREATE TABLE edge_group_by_flow (
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
    PRIMARY KEY (flow, downstream, name)
) WITHOUT ROWID;

INSERT INTO edge_group_by_flow SELECT * FROM edge_group;

DROP TABLE edge_group;

ALTER TABLE edge_group_by_flow RENAME TO edge_group;
