-- Entries: what is kept beside an execution under a topic and a key. Those of the generation that
-- the head says count.

ALTER TABLE {schema}.execution ADD COLUMN generation bigint NOT NULL DEFAULT 0;

CREATE TABLE {schema}.entry (
    n          bigint NOT NULL,
    generation bigint NOT NULL,
    topic      text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    epoch      bigint NOT NULL,
    place      bigint NOT NULL,
    body       bytea NOT NULL,
    PRIMARY KEY (n, generation, topic, key)
);

-- Documents: small named records of any kind, found by name, by word and by time.

CREATE TABLE {schema}.document (
    kind      text COLLATE "C" NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    rev       bigint NOT NULL,
    due_ms    bigint,
    words     text[] NOT NULL,
    body      bytea NOT NULL,
    PRIMARY KEY (kind, namespace, name)
);

CREATE INDEX document_due ON {schema}.document (kind, due_ms, namespace, name)
    WHERE due_ms IS NOT NULL;

CREATE TABLE {schema}.document_word (
    kind      text COLLATE "C" NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    word      text COLLATE "C" NOT NULL,
    PRIMARY KEY (kind, namespace, name, word)
);

CREATE INDEX document_word_names ON {schema}.document_word (kind, namespace, word, name);

-- Ready work waits in the queue that its route names: lane and task, as the core wrote them at
-- submit, in place of the lane alone.

ALTER TABLE {schema}.execution ADD COLUMN route text COLLATE "C" NOT NULL DEFAULT '';

UPDATE {schema}.execution SET route = lane || ' ' || kind;

DROP INDEX {schema}.execution_ready;

CREATE INDEX execution_ready ON {schema}.execution (namespace, route, priority DESC, created_ms, id)
    WHERE state IN ('waiting', 'orphaned', 'revoked');
