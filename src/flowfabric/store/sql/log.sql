-- name: log_append@sqlite
-- One line per changed row, with what the row says now.
WITH clock (now_ms) AS (VALUES (?)), new (id, kind, detail) AS (VALUES {rows})
INSERT INTO log (n, at_ms, kind, state, attempt, epoch, detail)
SELECT e.n, (SELECT now_ms FROM clock), new.kind, e.state, e.attempt, e.epoch, new.detail
FROM new CROSS JOIN execution AS e ON e.id = new.id

-- name: log_claims@sqlite
-- One line per claimed row, in the order they were taken: the list comes first in the join.
INSERT INTO log (n, at_ms, kind, state, attempt, epoch, detail)
SELECT e.n, ?2, ?3, e.state, e.attempt, e.epoch,
       json_object('worker', e.worker, 'kind', e.next_kind)
FROM json_each(?1) AS taken CROSS JOIN execution AS e ON e.n = taken.value

-- name: log_feed@sqlite
-- Lines after a position, in the order they were committed: there is one writer at a time.
SELECT json_group_array(json_array(seq, id, at_ms, kind, state, attempt, epoch, detail)) FROM (
    SELECT l.seq, e.id, l.at_ms, l.kind, l.state, l.attempt, l.epoch, l.detail
    FROM log AS l CROSS JOIN execution AS e ON e.n = l.n
    WHERE l.seq > ?1 AND (?3 IS NULL OR l.state IN (SELECT value FROM json_each(?3)))
    ORDER BY l.seq LIMIT ?2
)

-- name: log_history@sqlite
-- Lines of one execution after a position.
SELECT json_group_array(json_array(seq, id, at_ms, kind, state, attempt, epoch, detail)) FROM (
    SELECT l.seq, e.id, l.at_ms, l.kind, l.state, l.attempt, l.epoch, l.detail
    FROM execution AS e CROSS JOIN log AS l ON l.n = e.n
    WHERE e.id = ?3 AND l.seq > ?1 ORDER BY l.seq LIMIT ?2
)

-- name: log_newest@sqlite
-- The last line, of one execution or of all.
SELECT json_group_array(json_array(seq, id, at_ms, kind, state, attempt, epoch, detail)) FROM (
    SELECT l.seq, e.id, l.at_ms, l.kind, l.state, l.attempt, l.epoch, l.detail
    FROM log AS l CROSS JOIN execution AS e ON e.n = l.n
    WHERE l.seq > ?1 AND (?2 IS NULL OR l.n = (SELECT n FROM execution WHERE id = ?2))
    ORDER BY l.seq DESC LIMIT 1
)

-- name: log_last@sqlite
-- The last position given out, also if its line is gone.
SELECT ifnull(max(seq), 0) FROM sqlite_sequence WHERE name = 'log'

-- name: meta_load@sqlite
-- What the store was set up with.
SELECT json_group_object(name, value) FROM meta

-- name: meta_replace@sqlite
-- What is new about a copy.
UPDATE meta SET value = ?2 WHERE name = ?1

-- name: meta_set@sqlite
-- Fixed at the first start.
INSERT INTO meta (name, value) VALUES (?1, ?2)
