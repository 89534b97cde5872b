-- The tokens of the last requests of operators: one that is repeated after a lost reply is known.

ALTER TABLE {schema}.execution ADD COLUMN requests text NOT NULL DEFAULT '';

ALTER TABLE {schema}.flow ADD COLUMN requests text NOT NULL DEFAULT '';

-- What was put back is tried again at its instant: few rows, and no others are in these indexes.

CREATE INDEX flow_later ON {schema}.flow (next_try_ms) WHERE next_try_ms > 0;

CREATE INDEX line_later ON {schema}.line (next_try_ms) WHERE next_try_ms > 0;
