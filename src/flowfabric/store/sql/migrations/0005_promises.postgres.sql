-- The tokens of the last requests of operators: one that is repeated after a lost reply is known.

ALTER TABLE {schema}.execution ADD COLUMN requests text NOT NULL DEFAULT '';

ALTER TABLE {schema}.flow ADD COLUMN requests text NOT NULL DEFAULT '';
