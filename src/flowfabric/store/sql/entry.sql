-- name: entry_append@sqlite
-- Entries of executions whose leases are still those that were shown; a key that is there stays.
WITH clock (now_ms) AS (VALUES (?)),
    new (id, held_epoch, token, reasons, topic, key, place, body) AS (VALUES {rows})
INSERT OR IGNORE INTO entry (n, generation, topic, key, epoch, place, body)
SELECT e.n, e.generation, new.topic, new.key, e.epoch, new.place, new.body
FROM new CROSS JOIN execution AS e INDEXED BY sqlite_autoindex_execution_1 ON e.id = new.id
WHERE e.state = 'active' AND e.epoch = new.held_epoch AND e.lease_token = new.token
  AND instr(new.reasons, e.reason) > 0 AND e.lease_until_ms > (SELECT now_ms FROM clock)

-- name: entry_insert@sqlite
-- Entries of executions as they are since they were changed; a key that is there stays.
WITH new (id, topic, key, place, body) AS (VALUES {rows})
INSERT OR IGNORE INTO entry (n, generation, topic, key, epoch, place, body)
SELECT e.n, e.generation, new.topic, new.key, e.epoch, new.place, new.body
FROM new CROSS JOIN execution AS e INDEXED BY sqlite_autoindex_execution_1 ON e.id = new.id

-- name: entry_there@sqlite
-- What is there of these topics and keys, in the generation that counts.
SELECT json_group_array(json_array(
    e.id, x.topic, x.key, iif(typeof(x.body) = 'blob', hex(x.body), NULL),
    x.generation, x.epoch, x.place
))
FROM json_each(?1) AS asked
CROSS JOIN execution AS e INDEXED BY sqlite_autoindex_execution_1
    ON e.id = json_extract(asked.value, '$[0]')
CROSS JOIN entry AS x ON x.n = e.n AND x.generation = e.generation
    AND x.topic = json_extract(asked.value, '$[1]') AND x.key = json_extract(asked.value, '$[2]')

-- name: entry_read@sqlite
-- Entries of one topic after a key, in the order of their keys.
SELECT json_group_array(json_array(
    x.topic, x.key, iif(typeof(x.body) = 'blob', hex(x.body), NULL), x.generation, x.epoch, x.place
)) FROM (
    SELECT e.topic, e.key, e.body, e.generation, e.epoch, e.place
    FROM execution AS h INDEXED BY sqlite_autoindex_execution_1
    CROSS JOIN entry AS e ON e.n = h.n
    WHERE h.id = ?1 AND e.generation = ifnull(?5, h.generation) AND e.topic = ?2 AND e.key > ?3
    ORDER BY e.key LIMIT ?4
) AS x

-- name: purge_entry_count@sqlite
-- How many entries the first of these executions have, counted so far and no further.
SELECT json_group_array(json_array(n, count)) FROM (
    SELECT n, count(*) AS count FROM (
        SELECT x.n FROM json_each(?1) AS gone CROSS JOIN entry AS x ON x.n = gone.value LIMIT ?2
    ) GROUP BY n
)

-- name: purge_entry@sqlite
-- All entries of these executions.
DELETE FROM entry WHERE n IN (SELECT value FROM json_each(?1))

-- name: purge_entry_some@sqlite
-- The first entries of one execution.
DELETE FROM entry WHERE n = ?1 AND (generation, topic, key) < (
    SELECT generation, topic, key FROM entry
    WHERE n = ?1 ORDER BY generation, topic, key LIMIT 1 OFFSET ?2
)

-- name: purge_entry_left@sqlite
-- Which of these executions still have entries.
SELECT json_group_array(gone.value) FROM json_each(?1) AS gone
WHERE EXISTS (SELECT 1 FROM entry AS x WHERE x.n = gone.value)

-- name: purge_execution_left@sqlite
-- An execution of which something is left is not as it was seen any more.
UPDATE execution SET rev = rev + 1 WHERE n IN (SELECT value FROM json_each(?1))

-- name: entry_append@postgres
-- Entries of executions whose leases are still those that were shown; a key that is there stays.
-- Rows are locked in the order of their ids, and leases judged by the rows as they were when locked.
-- Nothing of a row is written, so that two of its holder's calls do not wait for each other. Each
-- row says which of the entries are its own: joined, all would be looked at for each.
{clock}, held AS MATERIALIZED (
    SELECT e.n, e.id, e.generation, e.epoch, t.first, t.last, coalesce({guard}, false) AS holds,
           CASE WHEN coalesce({guard}, false) THEN NULL
                ELSE json_build_array({heads})::text END AS refused
    FROM (SELECT {asked}) AS t JOIN {schema}.execution AS e ON e.id = t.given_id
    WHERE (SELECT fits FROM clock)
    ORDER BY e.id FOR SHARE OF e
), written AS (
    INSERT INTO {schema}.entry (n, generation, topic, key, epoch, place, body)
    SELECT h.n, h.generation, t.topic, t.key, h.epoch, t.place, t.body
    FROM held AS h CROSS JOIN LATERAL unnest(
        (:topic::text[])[h.first : h.last], (:key::text[])[h.first : h.last],
        (:place::bigint[])[h.first : h.last], (:body::bytea[])[h.first : h.last]
    ) AS t (topic, key, place, body)
    WHERE h.holds
    ORDER BY h.n, t.topic COLLATE "C", t.key COLLATE "C"
    ON CONFLICT DO NOTHING
    RETURNING n, topic, key
), told AS (SELECT count(*) < :total::bigint AS are_fewer FROM written)
SELECT c.now_ms, c.fits, t.are_fewer, h.n, h.id, h.generation, h.refused,
       CASE WHEN h.holds THEN ARRAY(SELECT w.topic || ' ' || w.key FROM written AS w WHERE w.n = h.n)
       END AS written
FROM clock AS c CROSS JOIN told AS t LEFT JOIN held AS h ON t.are_fewer

-- name: entry_there@postgres
-- What is there of these topics and keys.
SELECT x.n, x.topic, x.key, x.body, x.generation, x.epoch, x.place
FROM unnest(:numbers::bigint[], :generations::bigint[], :topics::text[], :keys::text[])
    AS t (n, generation, topic, key)
JOIN {schema}.entry AS x
    ON x.n = t.n AND x.generation = t.generation AND x.topic = t.topic AND x.key = t.key

-- name: entry_read@postgres
-- Entries of topics after a key, in the order of their keys.
SELECT t.which, x.topic, x.key, x.body, x.generation, x.epoch, x.place
FROM unnest(:ids::text[], :topics::text[], :afters::text[], :limits::bigint[], :generations::bigint[])
    WITH ORDINALITY AS t (id, topic, after, most, generation, which)
JOIN {schema}.execution AS e ON e.id = t.id
CROSS JOIN LATERAL (
    SELECT x.* FROM {schema}.entry AS x
    WHERE x.n = e.n AND x.generation = coalesce(t.generation, e.generation)
      AND x.topic = t.topic AND x.key > t.after
    ORDER BY x.key LIMIT t.most
) AS x
ORDER BY t.which, x.key

-- name: apply_entries@postgres
-- The part of an apply or a commit that writes the entries of what was changed, given as one text.
-- A key that is there stays.
, entered_{applied} AS (
    INSERT INTO {schema}.entry (n, generation, topic, key, epoch, place, body)
    SELECT a.n, a.generation, x.topic, x.key, a.epoch, x.place, decode(x.body, 'hex')
    FROM {applied} AS a CROSS JOIN LATERAL json_to_recordset(a.entries::json)
        AS x (topic text, key text, place bigint, body text)
    WHERE a.entries IS NOT NULL
    ORDER BY a.n, x.topic COLLATE "C", x.key COLLATE "C"
    ON CONFLICT DO NOTHING
)
