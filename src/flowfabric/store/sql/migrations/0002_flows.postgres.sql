-- Flows: the records of a graph, and the outbox of what is to be done about it.
-- Members are executions that name their flow, and rows without a flow are in none of the new
-- indexes. What a flow owns is written only under the lock of its row, so nothing here needs a
-- lock of its own; the end of a member, which only adds a line, is the exception.

ALTER TABLE {schema}.execution ADD COLUMN flow text COLLATE "C" NOT NULL DEFAULT '';

CREATE INDEX execution_flow ON {schema}.execution (flow, id) WHERE flow <> '';

-- Written by every round of a dispatcher: with room in its page, and no index on what changes.
CREATE TABLE {schema}.flow (
    id             text COLLATE "C" PRIMARY KEY,
    namespace      text COLLATE "C" NOT NULL,
    name           text COLLATE "C" NOT NULL,
    creator        text NOT NULL,
    created_ms     bigint NOT NULL,
    digest         text NOT NULL,
    rev            bigint NOT NULL,
    graph_revision bigint NOT NULL,
    state          text NOT NULL,
    is_open        boolean NOT NULL,
    total          bigint NOT NULL,
    edges          bigint NOT NULL,
    completed      bigint NOT NULL,
    failed         bigint NOT NULL,
    cancelled      bigint NOT NULL,
    expired        bigint NOT NULL,
    skipped        bigint NOT NULL,
    cancel_policy  text NOT NULL,
    cancel_reason  text NOT NULL,
    cancelled_ms   bigint,
    deadline_ms    bigint,
    due_ms         bigint,
    busy_until_ms  bigint NOT NULL,
    failures       bigint NOT NULL,
    next_try_ms    bigint NOT NULL,
    parked         text NOT NULL,
    updated_ms     bigint NOT NULL
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX flow_due ON {schema}.flow (due_ms, id) WHERE due_ms IS NOT NULL;

CREATE TABLE {schema}.edge (
    flow        text COLLATE "C" NOT NULL,
    upstream    text COLLATE "C" NOT NULL,
    downstream  text COLLATE "C" NOT NULL,
    grp         text COLLATE "C" NOT NULL,
    kind        text NOT NULL,
    position    bigint NOT NULL,
    argument    text NOT NULL,
    created_ms  bigint NOT NULL,
    creator     text NOT NULL,
    state       text NOT NULL,
    generation  bigint NOT NULL,
    attempt     bigint NOT NULL,
    outcome     text NOT NULL,
    resolved_ms bigint,
    PRIMARY KEY (downstream, grp, upstream)
);

-- Only what is pending: a large fan-out is resolved in parts, and no part walks over those before.
CREATE INDEX edge_leaving ON {schema}.edge (upstream, downstream, grp)
    WHERE state NOT IN ('satisfied', 'impossible');

CREATE TABLE {schema}.edge_group (
    flow          text COLLATE "C" NOT NULL,
    downstream    text COLLATE "C" NOT NULL,
    name          text COLLATE "C" NOT NULL,
    joins         text NOT NULL,
    k             bigint NOT NULL,
    on_satisfied  text NOT NULL,
    on_impossible text NOT NULL,
    sealed        boolean NOT NULL,
    state         text NOT NULL,
    n             bigint NOT NULL,
    succeeded     bigint NOT NULL,
    failed        bigint NOT NULL,
    skipped       bigint NOT NULL,
    decided_ms    bigint,
    cancel_owed   boolean NOT NULL,
    cancel_reason text NOT NULL,
    owed          text NOT NULL,
    PRIMARY KEY (downstream, name)
) WITH (fillfactor = 80);

-- A queue: as many rows go as come.
CREATE TABLE {schema}.line (
    flow        text COLLATE "C" NOT NULL,
    at_ms       bigint NOT NULL,
    id          text COLLATE "C" NOT NULL,
    kind        text NOT NULL,
    execution   text NOT NULL,
    generation  bigint NOT NULL,
    about       text NOT NULL,
    failures    bigint NOT NULL,
    next_try_ms bigint NOT NULL,
    PRIMARY KEY (flow, at_ms, id)
) WITH (
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);
