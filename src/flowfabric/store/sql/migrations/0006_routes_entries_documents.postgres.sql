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
