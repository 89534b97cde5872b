-- Duties: whose turn each of them is, and what its last holder left for the next one.

CREATE TABLE {schema}.shift (
    name     text COLLATE "C" PRIMARY KEY,
    owner    text NOT NULL,
    until_ms bigint NOT NULL,
    report   text NOT NULL
);

-- What has ended goes when its time has come, and flows are summed up.

ALTER TABLE {schema}.execution ADD COLUMN purge_ms bigint;

CREATE INDEX execution_purge ON {schema}.execution (purge_ms, id) WHERE purge_ms IS NOT NULL;

CREATE INDEX idempotency_id ON {schema}.idempotency (id);

ALTER TABLE {schema}.flow
    ADD COLUMN settled boolean NOT NULL DEFAULT false,
    ADD COLUMN summary text NOT NULL DEFAULT '',
    ADD COLUMN retention text NOT NULL DEFAULT '',
    ADD COLUMN keep_until_ms bigint NOT NULL DEFAULT 0,
    ADD COLUMN purge_ms bigint;

CREATE INDEX flow_purge ON {schema}.flow (purge_ms, id) WHERE purge_ms IS NOT NULL;

CREATE INDEX flow_unsettled ON {schema}.flow (id) WHERE NOT settled;

-- Up to this line some lines of the log are gone.
INSERT INTO {schema}.meta (name, value) VALUES ('log_floor', '0-0');

-- What ended before there was such a thing goes a day after it ended.
UPDATE {schema}.execution SET purge_ms = ended_ms + 86400000
WHERE ended_ms IS NOT NULL AND flow = '';
UPDATE {schema}.flow SET settled = true, purge_ms = updated_ms + 86400000
WHERE total > 0 AND total = completed + failed + cancelled + expired + skipped;
