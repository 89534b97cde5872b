-- name: attempt_upsert@sqlite
-- Attempts as their leases end. How and when an attempt first began is never overwritten, and who
-- worked on it only by somebody who did.
WITH new (id, {names}) AS (VALUES {rows})
INSERT OR FAIL INTO attempt (n, {names})
SELECT e.n, {values} FROM new CROSS JOIN execution AS e ON e.id = new.id WHERE true
ON CONFLICT (n, attempt) DO UPDATE SET
    lifecycle = excluded.lifecycle,
    worker = iif(excluded.worker = '', worker, excluded.worker),
    epoch = iif(excluded.worker = '', epoch, excluded.epoch),
    ended_ms = excluded.ended_ms, detail = excluded.detail, category = excluded.category,
    result = excluded.result

-- name: attempt_load@sqlite
-- The attempts of these executions.
SELECT json_group_array(json_array(
    e.id, a.attempt, a.kind, a.lifecycle, a.worker, a.epoch, a.started_ms, a.ended_ms, a.detail,
    a.category, iif(typeof(a.result) IN ('blob', 'null'), iif(a.result IS NULL, NULL, hex(a.result)), 0.5)
))
FROM execution AS e CROSS JOIN attempt AS a ON a.n = e.n
WHERE e.id IN (SELECT value FROM json_each(?1))

-- name: tag_upsert@sqlite
-- Set tags; other keys stay.
WITH new (id, key, value) AS (VALUES {rows})
INSERT OR FAIL INTO tag (n, key, value)
SELECT e.n, new.key, new.value FROM new CROSS JOIN execution AS e ON e.id = new.id WHERE true
ON CONFLICT (n, key) DO UPDATE SET value = excluded.value

-- name: tag_load@sqlite
-- The tags of these executions.
SELECT json_group_array(json_array(e.id, t.key, t.value))
FROM execution AS e CROSS JOIN tag AS t ON t.n = e.n
WHERE e.id IN (SELECT value FROM json_each(?1))

-- name: idempotency_load@sqlite
-- Keys of a namespace that are still alive; what is no text comes as nothing.
SELECT json_group_array(json_array(
    key, iif(typeof(id) = 'text', id, NULL), iif(typeof(digest) = 'text', digest, NULL)
)) FROM idempotency
WHERE namespace = ?1 AND key IN (SELECT value FROM json_each(?2)) AND until_ms > ?3

-- name: idempotency_upsert@sqlite
-- Keys of new executions; a key whose time is over is used again.
WITH new (namespace, key, id, digest, until_ms) AS (VALUES {rows})
INSERT OR FAIL INTO idempotency (namespace, key, id, digest, until_ms)
SELECT * FROM new WHERE id IS NOT NULL
ON CONFLICT (namespace, key) DO UPDATE SET
    id = excluded.id, digest = excluded.digest, until_ms = excluded.until_ms

-- name: lane_ensure@sqlite
-- Lanes come to be when something is submitted to them.
INSERT INTO lane (name) SELECT value FROM json_each(?1) WHERE true ON CONFLICT (name) DO NOTHING

-- name: lane_load@sqlite
-- Lanes by name.
SELECT json_group_array(json_array(name, state, rev)) FROM lane
WHERE name IN (SELECT value FROM json_each(?1))

-- name: lane_set@sqlite
-- The state of a lane.
INSERT INTO lane (name, state, rev) VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET state = excluded.state, rev = excluded.rev

-- name: lane_list@sqlite
-- Lanes in order of their names.
SELECT json_group_array(json_array(name, state, rev)) FROM (
    SELECT name, state, rev FROM lane WHERE name > ?1 ORDER BY name LIMIT ?2
)

-- name: tag_upsert@postgres
-- Set tags; other keys stay.
INSERT INTO {schema}.tag (n, key, value)
SELECT e.n, t.key, t.value FROM unnest(:ids::text[], :keys::text[], :values::text[]) AS t (id, key, value)
JOIN {schema}.execution AS e ON e.id = t.id
ON CONFLICT (n, key) DO UPDATE SET value = excluded.value

-- name: lane_lock@postgres
-- Lanes by name, locked in that order.
SELECT name, state, rev FROM {schema}.lane WHERE name = ANY (:names::text[])
ORDER BY name FOR UPDATE

-- name: lane_set@postgres
-- The states of lanes; one that came to be meanwhile is not answered.
INSERT INTO {schema}.lane AS l (name, state, rev)
SELECT * FROM unnest(:names::text[], :states::text[], :revs::bigint[]) AS t (name, state, rev)
ORDER BY name
ON CONFLICT (name) DO UPDATE SET state = excluded.state, rev = excluded.rev
    WHERE l.rev = excluded.rev - 1
RETURNING name

-- name: lane_list@postgres
-- Lanes in order of their names.
SELECT name, state, rev FROM {schema}.lane WHERE name > :after::text ORDER BY name LIMIT :limit::bigint

-- name: notice@postgres
-- Tell the other processes of something that was written.
SELECT pg_notify(:channel::text, :notice::text)

-- name: shift_take@sqlite
-- The turn of a duty, if it is free or the asker's own.
INSERT INTO shift (name, owner, until_ms, report) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (name) DO UPDATE SET
    owner = excluded.owner, until_ms = excluded.until_ms,
    report = iif(excluded.report = '' AND typeof(report) = 'text', report, excluded.report)
WHERE owner = excluded.owner OR until_ms <= ?5 OR typeof(until_ms) <> 'integer'

-- name: shift_list@sqlite
-- Whose turn each duty is.
SELECT json_group_array(json_array(name, owner, until_ms, report)) FROM (
    SELECT name, owner, until_ms, report FROM shift ORDER BY name
)

-- name: shift_take@postgres
-- The turns of duties that are free or the asker's own, and all others as they stood before.
{clock}, asked AS (
    SELECT * FROM unnest(
        :names::text[], :owners::text[], :untils::bigint[], :reports::text[]
    ) AS t (name, owner, until_ms, report) ORDER BY name
), taken AS (
    INSERT INTO {schema}.shift AS s (name, owner, until_ms, report)
    SELECT a.* FROM asked AS a WHERE (SELECT fits FROM clock)
    ON CONFLICT (name) DO UPDATE SET
        owner = excluded.owner, until_ms = excluded.until_ms,
        report = CASE excluded.report WHEN '' THEN s.report ELSE excluded.report END
    WHERE s.owner = excluded.owner OR s.until_ms <= :now_ms::bigint
    RETURNING s.name, s.owner, s.until_ms, s.report
), known AS (
    SELECT * FROM taken
    UNION ALL
    SELECT s.name, s.owner, s.until_ms, s.report FROM {schema}.shift AS s
    WHERE s.name NOT IN (SELECT name FROM taken)
)
SELECT c.now_ms, c.fits, k.name, k.owner, k.until_ms, k.report
FROM clock AS c LEFT JOIN known AS k ON true ORDER BY k.name
