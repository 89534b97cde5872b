-- Duties: whose turn each of them is, and what its last holder left for the next one.

CREATE TABLE shift (
    name     TEXT PRIMARY KEY,
    owner    TEXT    NOT NULL,
    until_ms INTEGER NOT NULL,
    report   TEXT    NOT NULL
) WITHOUT ROWID;

-- What has ended goes when its time has come, and flows are summed up.

ALTER TABLE execution ADD COLUMN purge_ms INTEGER;

CREATE INDEX execution_purge ON execution (purge_ms, id) WHERE purge_ms IS NOT NULL;

CREATE INDEX idempotency_id ON idempotency (id);

ALTER TABLE flow ADD COLUMN settled INTEGER NOT NULL DEFAULT 0;
ALTER TABLE flow ADD COLUMN summary TEXT NOT NULL DEFAULT '';
ALTER TABLE flow ADD COLUMN retention TEXT NOT NULL DEFAULT '';
ALTER TABLE flow ADD COLUMN keep_until_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE flow ADD COLUMN purge_ms INTEGER;

CREATE INDEX flow_purge ON flow (purge_ms, id) WHERE purge_ms IS NOT NULL;

CREATE INDEX flow_unsettled ON flow (id) WHERE NOT settled;

-- Up to this line some lines of the log are gone.
INSERT INTO meta (name, value) VALUES ('log_floor', '0');

-- What ended before there was such a thing goes a day after it ended.
UPDATE execution SET purge_ms = ended_ms + 86400000 WHERE ended_ms IS NOT NULL AND flow = '';
UPDATE flow SET settled = 1, purge_ms = updated_ms + 86400000
WHERE total > 0 AND total = completed + failed + cancelled + expired + skipped;
