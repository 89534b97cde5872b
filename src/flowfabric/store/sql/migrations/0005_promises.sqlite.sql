-- The tokens of the last requests of operators: one that is repeated after a lost reply is known.

ALTER TABLE execution ADD COLUMN requests TEXT NOT NULL DEFAULT '';

ALTER TABLE flow ADD COLUMN requests TEXT NOT NULL DEFAULT '';
