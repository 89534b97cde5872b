-- Entries: what is kept beside an execution under a topic and a key. Those of the generation that
-- the head says count.

ALTER TABLE execution ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;

CREATE TABLE entry (
    n          INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    topic      TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    epoch      INTEGER NOT NULL,
    place      INTEGER NOT NULL,
    body       BLOB    NOT NULL,
    PRIMARY KEY (n, generation, topic, key)
) WITHOUT ROWID;
