-- The first schema on Postgres. `{schema}` is the quoted name of the schema.
-- What belongs to an execution is found by its number `n`, a third of the size of the text id in an
-- index; `n` itself needs no index, because every road begins at the id.
-- States are text, not an enum: an older version must be able to keep what a newer one wrote.
-- There are no foreign keys: they would lock and look up rows on every write of a hot table.

CREATE TABLE {schema}.meta (
    name  text COLLATE "C" PRIMARY KEY,
    value text NOT NULL
);

-- Room in every page lets a renewal, which touches no indexed column, stay in its page.
CREATE TABLE {schema}.execution (
    n                  bigint GENERATED ALWAYS AS IDENTITY,
    rev                bigint NOT NULL DEFAULT 1,
    created_ms         bigint NOT NULL,
    updated_ms         bigint NOT NULL,
    priority           bigint NOT NULL DEFAULT 0,
    epoch              bigint NOT NULL DEFAULT 0,
    attempt            bigint NOT NULL DEFAULT -1,
    next_attempt       bigint NOT NULL DEFAULT 0,
    retry_count        bigint NOT NULL DEFAULT 0,
    reclaim_count      bigint NOT NULL DEFAULT 0,
    replay_count       bigint NOT NULL DEFAULT 0,
    failures           bigint NOT NULL DEFAULT 0,
    paused             boolean NOT NULL DEFAULT false,
    deps_open          boolean NOT NULL DEFAULT false,
    id                 text COLLATE "C" PRIMARY KEY,
    namespace          text COLLATE "C" NOT NULL,
    lane               text COLLATE "C" NOT NULL,
    kind               text COLLATE "C" NOT NULL,
    creator            text NOT NULL,
    policy             text NOT NULL,
    state              text NOT NULL,
    reason             text NOT NULL,
    attempt_state      text NOT NULL DEFAULT 'pending_first_attempt',
    attempt_kind       text NOT NULL DEFAULT 'initial',
    next_kind          text NOT NULL DEFAULT 'initial',
    admission          text NOT NULL DEFAULT 'none',
    lost               text NOT NULL DEFAULT 'none',
    lease_token        text NOT NULL DEFAULT '',
    worker             text NOT NULL DEFAULT '',
    parked             text NOT NULL DEFAULT '',
    outcome_detail     text NOT NULL DEFAULT '',
    outcome_category   text NOT NULL DEFAULT '',
    due_ms             bigint,
    lease_until_ms     bigint,
    renewed_ms         bigint,
    attempt_started_ms bigint,
    attempt_until_ms   bigint,
    attempt_left_ms    bigint,
    not_before_ms      bigint,
    recheck_ms         bigint,
    deadline_ms        bigint,
    started_ms         bigint,
    ended_ms           bigint,
    progress_pct       bigint,
    progress_message   text,
    payload            bytea NOT NULL
) WITH (
    fillfactor = 70,
    toast_tuple_target = 1024,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX execution_ready ON {schema}.execution (namespace, lane, priority DESC, created_ms, id)
    WHERE state IN ('waiting', 'orphaned', 'revoked');

CREATE INDEX execution_due ON {schema}.execution (due_ms, id) WHERE due_ms IS NOT NULL;

CREATE TABLE {schema}.attempt (
    n          bigint NOT NULL,
    attempt    bigint NOT NULL,
    epoch      bigint NOT NULL,
    started_ms bigint,
    ended_ms   bigint,
    kind       text NOT NULL,
    lifecycle  text NOT NULL,
    worker     text NOT NULL,
    detail     text NOT NULL,
    category   text NOT NULL,
    result     bytea,
    PRIMARY KEY (n, attempt)
);

CREATE TABLE {schema}.tag (
    n     bigint NOT NULL,
    key   text COLLATE "C" NOT NULL,
    value text COLLATE "C" NOT NULL,
    PRIMARY KEY (n, key)
);

CREATE INDEX tag_value ON {schema}.tag (key, value, n);

CREATE TABLE {schema}.idempotency (
    namespace text COLLATE "C" NOT NULL,
    key       text COLLATE "C" NOT NULL,
    id        text NOT NULL,
    digest    text NOT NULL,
    until_ms  bigint NOT NULL,
    PRIMARY KEY (namespace, key)
);

CREATE TABLE {schema}.lane (
    name  text COLLATE "C" PRIMARY KEY,
    state text NOT NULL DEFAULT 'active',
    rev   bigint NOT NULL DEFAULT 1
);

-- `xid` says which transaction wrote a line: readers follow (xid, seq) below the oldest
-- transaction that may still write here, so that a late commit is never passed by.
CREATE TABLE {schema}.log (
    seq     bigint GENERATED ALWAYS AS IDENTITY,
    xid     xid8 NOT NULL DEFAULT pg_current_xact_id(),
    n       bigint NOT NULL,
    at_ms   bigint NOT NULL,
    attempt bigint NOT NULL,
    epoch   bigint NOT NULL,
    id      text COLLATE "C" NOT NULL,
    kind    text NOT NULL,
    state   text NOT NULL,
    detail  json NOT NULL
) WITH (
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05
);

CREATE UNIQUE INDEX log_feed ON {schema}.log (xid, seq);

CREATE INDEX log_execution ON {schema}.log (n, seq);

-- A statement that finds out too late that somebody was faster undoes itself by calling this.
CREATE FUNCTION {schema}.raced() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'somebody was faster' USING ERRCODE = 'serialization_failure';
END $$;
