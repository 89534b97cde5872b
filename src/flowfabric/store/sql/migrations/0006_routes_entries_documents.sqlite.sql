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

-- Documents: small named records of any kind, found by name, by word and by time.

CREATE TABLE document (
    kind      TEXT    NOT NULL,
    namespace TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    rev       INTEGER NOT NULL,
    due_ms    INTEGER,
    words     TEXT    NOT NULL,
    body      BLOB    NOT NULL,
    PRIMARY KEY (kind, namespace, name)
) WITHOUT ROWID;

CREATE INDEX document_due ON document (kind, due_ms, namespace, name) WHERE due_ms IS NOT NULL;

CREATE TABLE document_word (
    kind      TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    word      TEXT NOT NULL,
    PRIMARY KEY (kind, namespace, name, word)
) WITHOUT ROWID;

CREATE INDEX document_word_names ON document_word (kind, namespace, word, name);

-- Ready work waits in the queue that its route names: lane and task, as the core wrote them at
-- submit, in place of the lane alone.

ALTER TABLE execution ADD COLUMN route TEXT NOT NULL DEFAULT '';

UPDATE execution SET route = lane || ' ' || kind;

DROP INDEX execution_ready;

CREATE INDEX execution_ready ON execution (namespace, route, priority DESC, created_ms, id)
    WHERE state IN ('waiting', 'orphaned', 'revoked');
