-- Lines by age: a look for flows with work begins behind those that are done but not vacuumed yet.

CREATE INDEX line_at ON {schema}.line (at_ms);
