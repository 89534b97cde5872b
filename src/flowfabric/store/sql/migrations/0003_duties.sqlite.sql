-- Duties: whose turn each of them is, and what its last holder left for the next one.

CREATE TABLE shift (
    name     TEXT PRIMARY KEY,
    owner    TEXT    NOT NULL,
    until_ms INTEGER NOT NULL,
    report   TEXT    NOT NULL
) WITHOUT ROWID;
