-- name: execution_departing@sqlite
-- Executions on their own whose time has come, soonest first: what can be read of any row.
SELECT json_group_array(json_array(id, rev)) FROM (
    SELECT id, rev FROM execution INDEXED BY execution_purge
    WHERE purge_ms <= ?1 AND typeof(rev) = 'integer' AND typeof(id) = 'text'
    ORDER BY purge_ms, id LIMIT ?2
)

-- name: flow_departing@sqlite
-- Flows whose time has come, soonest first.
SELECT json_group_array(json_array({columns})) FROM (
    SELECT * FROM flow INDEXED BY flow_purge
    WHERE purge_ms <= ?1 ORDER BY purge_ms, id LIMIT ?2
) AS e

-- name: purge_seen@sqlite
-- Those of these executions that are as they were seen, and until when a key of theirs lives.
SELECT json_group_array(json_array(e.n, e.id, (
    SELECT CAST(ifnull(max(i.until_ms), 0) AS INTEGER)
    FROM idempotency AS i INDEXED BY idempotency_id
    WHERE i.id = e.id
)))
FROM json_each(?1) AS seen
CROSS JOIN execution AS e INDEXED BY sqlite_autoindex_execution_1 ON e.id = json_extract(seen.value, '$[0]')
WHERE e.rev = json_extract(seen.value, '$[1]')

-- name: purge_flows_seen@sqlite
-- Those of these flows that are as they were seen.
SELECT json_group_array(f.id)
FROM json_each(?1) AS seen CROSS JOIN flow AS f ON f.id = json_extract(seen.value, '$[0]')
WHERE f.rev = json_extract(seen.value, '$[1]')

-- name: purge_members@sqlite
-- The first members of a flow, in the order of their ids.
SELECT json_group_array(json_array(n, id)) FROM (
    SELECT n, id FROM execution WHERE flow = ?1 AND flow <> '' ORDER BY id LIMIT ?2
)

-- name: purge_floor@sqlite
-- Remember up to where the log has gaps.
UPDATE meta SET value = max(CAST(value AS INTEGER), ifnull((
    SELECT max(l.seq) FROM json_each(?1) AS gone CROSS JOIN log AS l ON l.n = gone.value
), 0)) WHERE name = 'log_floor'

-- name: purge_log@sqlite
-- Lines of the log of these executions.
DELETE FROM log INDEXED BY log_execution WHERE n IN (SELECT value FROM json_each(?1))

-- name: purge_payload@sqlite
-- Bodies of these executions.
DELETE FROM payload WHERE n IN (SELECT value FROM json_each(?1))

-- name: purge_attempt@sqlite
-- Attempts of these executions.
DELETE FROM attempt WHERE n IN (SELECT value FROM json_each(?1))

-- name: purge_tag@sqlite
-- Tags of these executions.
DELETE FROM tag WHERE n IN (SELECT value FROM json_each(?1))

-- name: purge_execution@sqlite
-- These executions.
DELETE FROM execution WHERE n IN (SELECT value FROM json_each(?1))

-- name: purge_key@sqlite
-- Keys of these executions.
DELETE FROM idempotency WHERE id IN (SELECT value FROM json_each(?1))

-- name: purge_edge@sqlite
-- Edges go with their downstream.
DELETE FROM edge WHERE (flow, downstream) IN (
    SELECT flow, id FROM execution WHERE n IN (SELECT value FROM json_each(?1)) AND flow <> ''
)

-- name: purge_group@sqlite
-- Groups of these executions.
DELETE FROM edge_group WHERE (flow, downstream) IN (
    SELECT flow, id FROM execution WHERE n IN (SELECT value FROM json_each(?1)) AND flow <> ''
)

-- name: purge_line@sqlite
-- Open lines of these flows.
DELETE FROM line WHERE flow IN (SELECT value FROM json_each(?1))

-- name: purge_flow@sqlite
-- These flows.
DELETE FROM flow WHERE id IN (SELECT value FROM json_each(?1))

-- name: purge_flow_left@sqlite
-- A flow of which something is left is not as it was seen any more.
UPDATE flow SET rev = rev + 1 WHERE id IN (SELECT value FROM json_each(?1))

-- name: log_floor@sqlite
-- Up to where the log has gaps.
SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'log_floor'

-- name: flow_tally@sqlite
-- How many members of these flows are in each state.
SELECT json_group_array(json_array(flow, state, count)) FROM (
    SELECT flow, iif(typeof(state) = 'text', state, 'unreadable') AS state, count(*) AS count
    FROM execution
    WHERE flow IN (SELECT value FROM json_each(?1)) AND flow <> ''
    GROUP BY 1, 2
)

-- name: departing@postgres
-- Executions on their own and flows whose time has come, soonest first: of an execution, what can be
-- read of any row.
SELECT e.id, e.rev, NULL::text AS flow FROM (
    SELECT id, rev FROM {schema}.execution WHERE purge_ms <= :now_ms::bigint
    ORDER BY purge_ms, id LIMIT :limit::bigint
) AS e
UNION ALL
SELECT e.id, e.rev, json_build_array({flow_columns})::text FROM (
    SELECT * FROM {schema}.flow WHERE purge_ms <= :now_ms::bigint
    ORDER BY purge_ms, id LIMIT :limit::bigint
) AS e

-- name: purge@postgres
-- Remove executions and flows that are as they were seen, with all that is theirs. Flows are locked
-- first, in the order of their ids, then executions in the order of theirs; an execution whose key
-- is alive stays. What is removed is named by arrays: a join with a table that the server believes to
-- be empty would walk it once for each. The ids of keys are sorted in another way than those of
-- executions, and their index is of no use for texts that are not said to be sorted like it.
{clock}, owner AS MATERIALIZED (
    SELECT f.id FROM unnest(:flows::text[], :flow_revs::bigint[]) AS s (id, rev)
    JOIN {schema}.flow AS f ON f.id = s.id AND f.rev = s.rev
    WHERE (SELECT fits FROM clock) ORDER BY f.id FOR UPDATE OF f
), member AS MATERIALIZED (
    SELECT o.id AS flow, m.id, m.place FROM owner AS o CROSS JOIN LATERAL (
        SELECT e.id, row_number() OVER (ORDER BY e.id) AS place FROM (
            SELECT id FROM {schema}.execution WHERE flow = o.id AND flow <> ''
            ORDER BY flow, id LIMIT :members::bigint + 1
        ) AS e) AS m
), doomed AS MATERIALIZED (
    SELECT id, rev FROM unnest(:ids::text[], :revs::bigint[]) AS s (id, rev)
    UNION ALL SELECT id, NULL FROM member WHERE place <= :members::bigint
), locked AS MATERIALIZED (
    SELECT e.n, e.id, d.rev IS NOT NULL AS is_alone FROM doomed AS d
    JOIN {schema}.execution AS e ON e.id = d.id
    WHERE e.id = ANY (ARRAY(SELECT id FROM doomed)) AND (d.rev IS NULL OR e.rev = d.rev)
      AND (SELECT fits FROM clock) ORDER BY e.id FOR UPDATE OF e
), alive AS MATERIALIZED (
    SELECT i.id, max(i.until_ms) AS until_ms FROM {schema}.idempotency AS i
    WHERE i.id = ANY (ARRAY(SELECT id COLLATE "default" FROM locked WHERE is_alone))
    GROUP BY i.id HAVING max(i.until_ms) > :now_ms::bigint
){emptied}, emptied AS MATERIALIZED (
    SELECT o.id FROM owner AS o
    WHERE (SELECT count(*) FROM member AS m WHERE m.flow = o.id) <= :members::bigint
      AND NOT EXISTS (SELECT FROM member AS m JOIN staying AS s ON s.id = m.id WHERE m.flow = o.id)
), unlogged AS (
    DELETE FROM {schema}.log WHERE n = ANY (ARRAY(SELECT n FROM victim)) RETURNING xid, seq
), unkeyed AS (DELETE FROM {schema}.idempotency
    WHERE id = ANY (ARRAY(SELECT id COLLATE "default" FROM victim))
), untried AS (DELETE FROM {schema}.attempt WHERE n = ANY (ARRAY(SELECT n FROM victim))
), untagged AS (DELETE FROM {schema}.tag WHERE n = ANY (ARRAY(SELECT n FROM victim))
), undrawn AS (DELETE FROM {schema}.edge WHERE downstream = ANY (ARRAY(SELECT id FROM victim))
), ungrouped AS (
    DELETE FROM {schema}.edge_group WHERE downstream = ANY (ARRAY(SELECT id FROM victim))
), gone AS (DELETE FROM {schema}.execution WHERE id = ANY (ARRAY(SELECT id FROM victim))
), unlined AS (DELETE FROM {schema}.line WHERE flow = ANY (ARRAY(SELECT id FROM emptied))
), gone_flow AS (DELETE FROM {schema}.flow WHERE id = ANY (ARRAY(SELECT id FROM emptied))
), left_flow AS (UPDATE {schema}.flow AS f SET rev = f.rev + 1
    FROM owner AS o WHERE f.id = o.id AND o.id NOT IN (SELECT id FROM emptied)
), floor AS (
    UPDATE {schema}.meta AS m SET value = x.xid::text || '-' || x.seq
    FROM (SELECT xid, seq FROM unlogged ORDER BY xid DESC, seq DESC LIMIT 1) AS x
    WHERE m.name = 'log_floor'
      AND (split_part(m.value, '-', 1)::xid8, split_part(m.value, '-', 2)::bigint) < (x.xid, x.seq)
)
SELECT c.now_ms, c.fits,
       ARRAY(SELECT id FROM victim WHERE is_alone UNION ALL SELECT id FROM emptied) AS gone,
       ARRAY(SELECT id FROM alive ORDER BY id) AS kept,
       ARRAY(SELECT until_ms FROM alive ORDER BY id) AS kept_until_ms,
       (SELECT count(*) FROM victim WHERE NOT is_alone) AS members,
       (SELECT count(*) FROM staying) AS staying
FROM clock AS c

-- name: purge_entries@postgres
-- The part of a removal that takes entries first, so many at most; executions that have some left
-- stay, and are not as they were seen any more. Nobody else changes what is locked, so that rows can
-- be named by where they are.
, candidate AS MATERIALIZED (
    SELECT n, id, is_alone FROM locked WHERE id NOT IN (SELECT id FROM alive) ORDER BY n
), going AS MATERIALIZED (
    SELECT c.n, x.at FROM candidate AS c CROSS JOIN LATERAL (
        SELECT y.ctid AS at FROM {schema}.entry AS y WHERE y.n = c.n
        ORDER BY y.n, y.generation, y.topic, y.key LIMIT :entries::bigint + 1
    ) AS x LIMIT :entries::bigint + 1
), full_at AS MATERIALIZED (
    SELECT CASE WHEN count(*) > :entries::bigint THEN max(n) END AS n FROM going
), victim AS MATERIALIZED (
    SELECT c.n, c.id, c.is_alone FROM candidate AS c CROSS JOIN full_at AS f
    WHERE f.n IS NULL OR c.n < f.n OR NOT EXISTS (SELECT FROM {schema}.entry AS y WHERE y.n = c.n)
), staying AS MATERIALIZED (SELECT id FROM candidate WHERE id NOT IN (SELECT id FROM victim)
), unentered AS (
    DELETE FROM {schema}.entry WHERE ctid = ANY (ARRAY(SELECT at FROM going LIMIT :entries::bigint))
), risen AS (
    UPDATE {schema}.execution SET rev = rev + 1 WHERE id = ANY (ARRAY(SELECT id FROM staying))
)

-- name: floor_reset@postgres
-- On another server the numbers of transactions begin anew, and no cursor from before is good.
UPDATE {schema}.meta SET value = '0-0' WHERE name = 'log_floor'

-- name: graph_tally@postgres
-- How many members of these flows are in each state.
UNION ALL
SELECT 'tally', t.which, json_object_agg(t.state, t.members)::text FROM (
    SELECT w.which, m.state, m.members
    FROM unnest(:tally_which::bigint[], :tally_flow::text[]) AS w (which, flow)
    CROSS JOIN LATERAL (
        SELECT x.state, count(*) AS members FROM {schema}.execution AS x
        WHERE x.flow = w.flow AND x.flow <> '' GROUP BY x.state
    ) AS m
) AS t GROUP BY t.which
