-- Duties: whose turn each of them is, and what its last holder left for the next one.

CREATE TABLE {schema}.shift (
    name     text COLLATE "C" PRIMARY KEY,
    owner    text NOT NULL,
    until_ms bigint NOT NULL,
    report   text NOT NULL
);
