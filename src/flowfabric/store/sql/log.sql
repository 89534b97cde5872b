-- name: log_append@sqlite
-- One line per changed row, with what the row says now.
WITH clock (now_ms) AS (VALUES (?)), new (id, kind, detail) AS (VALUES {rows})
INSERT OR FAIL INTO log (n, at_ms, kind, state, attempt, epoch, detail)
SELECT e.n, (SELECT now_ms FROM clock), new.kind, e.state, e.attempt, e.epoch, new.detail
FROM new CROSS JOIN execution AS e INDEXED BY sqlite_autoindex_execution_1 ON e.id = new.id

-- name: log_claims@sqlite
-- One line per claimed row, in the order they were taken: the list comes first in the join.
INSERT INTO log (n, at_ms, kind, state, attempt, epoch, detail)
SELECT e.n, ?2, ?3, e.state, e.attempt, e.epoch,
       json_object('worker', e.worker, 'kind', iif(typeof(e.next_kind) = 'text', e.next_kind, ''))
FROM json_each(?1) AS taken CROSS JOIN execution AS e ON e.n = taken.value

-- name: log_feed@sqlite
-- Lines after a position, in the order they were committed: there is one writer at a time.
SELECT json_group_array(json_array(seq, id, at_ms, kind, state, attempt, epoch, detail)) FROM (
    SELECT l.seq, e.id, l.at_ms, l.kind, l.state, l.attempt, l.epoch, l.detail
    FROM log AS l CROSS JOIN execution AS e ON e.n = l.n
    WHERE l.seq > ?1 AND (?3 IS NULL OR l.state IN (SELECT value FROM json_each(?3))
                          OR l.state NOT IN (SELECT value FROM json_each(?4)))
    ORDER BY l.seq LIMIT ?2
)

-- name: log_history@sqlite
-- Lines of one execution after a position.
SELECT json_group_array(json_array(seq, id, at_ms, kind, state, attempt, epoch, detail)) FROM (
    SELECT l.seq, e.id, l.at_ms, l.kind, l.state, l.attempt, l.epoch, l.detail
    FROM execution AS e CROSS JOIN log AS l INDEXED BY log_execution ON l.n = e.n
    WHERE e.id = ?3 AND l.seq > ?1 ORDER BY l.seq LIMIT ?2
)

-- name: log_newest@sqlite
-- The last line of all.
SELECT json_group_array(json_array(seq, id, at_ms, kind, state, attempt, epoch, detail)) FROM (
    SELECT l.seq, e.id, l.at_ms, l.kind, l.state, l.attempt, l.epoch, l.detail
    FROM log AS l CROSS JOIN execution AS e ON e.n = l.n
    WHERE l.seq > ?1 ORDER BY l.seq DESC LIMIT 1
)

-- name: log_newest_of@sqlite
-- The last line of one execution.
SELECT json_group_array(json_array(seq, id, at_ms, kind, state, attempt, epoch, detail)) FROM (
    SELECT l.seq, e.id, l.at_ms, l.kind, l.state, l.attempt, l.epoch, l.detail
    FROM execution AS e CROSS JOIN log AS l INDEXED BY log_execution ON l.n = e.n
    WHERE e.id = ?2 AND l.seq > ?1 ORDER BY l.seq DESC LIMIT 1
)

-- name: log_last@sqlite
-- The last position given out, also if its line is gone.
SELECT ifnull(max(seq), 0) FROM sqlite_sequence WHERE name = 'log'

-- name: meta_load@sqlite
-- What the store was set up with.
SELECT json_group_object(name, value) FROM meta

-- name: log_last_at@sqlite
-- When the last line was written.
SELECT at_ms FROM log WHERE seq > 0 ORDER BY seq DESC LIMIT 1

-- name: meta_named@sqlite
-- One fact about the store.
SELECT value FROM meta WHERE name = ?1

-- name: meta_put@sqlite
-- A fact about the store, whether it was there or not.
INSERT INTO meta (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: meta_replace@sqlite
-- What is new about a copy.
UPDATE meta SET value = ?2 WHERE name = ?1

-- name: meta_set@sqlite
-- Fixed at the first start.
INSERT INTO meta (name, value) VALUES (?1, ?2)

-- name: log_append@postgres
-- One line per changed row, with what the row says now, in the order given.
INSERT INTO {schema}.log (n, id, at_ms, kind, state, attempt, epoch, detail)
SELECT e.n, e.id, :now_ms::bigint, t.kind, e.state, e.attempt, e.epoch, t.detail::json
FROM unnest(:ids::text[], :kinds::text[], :details::text[])
    WITH ORDINALITY AS t (id, kind, detail, position)
JOIN {schema}.execution AS e ON e.id = t.id
ORDER BY t.position

-- name: log_reserve@postgres
-- Held before a transaction of several statements gets its number: readers look who may still write.
LOCK TABLE {schema}.log IN ROW EXCLUSIVE MODE

-- name: log_life@postgres
-- The beginning of every reading of the log: which life of the store this is, the newest number of
-- a transaction, and the horizon: the oldest transaction that may still append lines. Who appends
-- locks the table before it gets a number. So a transaction of this snapshot that is in progress
-- even after the locks were read, and had no such lock then, appends nothing; any other that was in
-- progress counts as if it still were.
WITH held AS MATERIALIZED (
    SELECT l.virtualtransaction, l.transactionid,
           l.relation = '{schema}.log'::regclass AND l.database = d.oid AS appends
    FROM pg_locks AS l CROSS JOIN (
        SELECT oid FROM pg_database WHERE datname = current_database()
    ) AS d
    WHERE l.locktype IN ('transactionid', 'relation') AND l.granted
), life AS MATERIALIZED (
    SELECT (SELECT system_identifier FROM pg_control_system())::text || '.'
           || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || '.'
           || (SELECT value FROM {schema}.meta WHERE name = 'incarnation') AS incarnation,
           (SELECT value FROM {schema}.meta WHERE name = 'log_floor') AS floor,
           pg_snapshot_xmax(s.shot) AS newest,
           coalesce((
               SELECT x FROM pg_snapshot_xip(s.shot) AS x
               WHERE NOT CASE WHEN EXISTS (
                   SELECT FROM held AS t WHERE t.transactionid = x::xid AND NOT EXISTS (
                       SELECT FROM held AS r
                       WHERE r.virtualtransaction = t.virtualtransaction AND r.appends
                   )
               ) THEN pg_xact_status(x) = 'in progress' ELSE false END
               ORDER BY x LIMIT 1
           ), pg_snapshot_xmax(s.shot)) AS horizon
    FROM (SELECT pg_current_snapshot() AS shot) AS s
)

-- name: log_feed@postgres
-- Lines after a position and below the horizon, in the order of their transactions.
{life}
SELECT life.incarnation, life.newest::text AS newest, life.floor, line.*
FROM life LEFT JOIN LATERAL (
    SELECT l.xid::text AS xid, l.seq, l.id, l.at_ms, l.kind, l.state, l.attempt, l.epoch,
           l.detail::text AS detail
    FROM {schema}.log AS l
    WHERE (l.xid, l.seq) > (:xid::text::xid8, :seq::bigint) AND l.xid < life.horizon
      AND (:states::text[] IS NULL OR l.state = ANY (:states::text[])
           OR l.state <> ALL (:known::text[]))
    ORDER BY l.xid {way}, l.seq {way} LIMIT :limit::bigint
) AS line ON true

-- name: log_history@postgres
-- Lines of one execution, all that are committed: its row is locked by who appends one, so that
-- their numbers are in the order of the commits.
{life}
SELECT life.incarnation, life.newest::text AS newest, life.floor, line.*
FROM life LEFT JOIN LATERAL (
    SELECT l.xid::text AS xid, l.seq, l.id, l.at_ms, l.kind, l.state, l.attempt, l.epoch,
           l.detail::text AS detail
    FROM {schema}.execution AS e JOIN {schema}.log AS l ON l.n = e.n
    WHERE e.id = :execution::text AND l.seq > :seq::bigint
    ORDER BY l.seq {way} LIMIT :limit::bigint
) AS line ON true

-- name: log_renumber@postgres
-- Lines from another server come before all that this one will write.
UPDATE {schema}.log SET xid = '0'

-- name: meta_load@postgres
-- What the store was set up with, and which server it is on now.
SELECT name, value FROM {schema}.meta
UNION ALL SELECT 'system_now', system_identifier::text FROM pg_control_system()

-- name: meta_moved@postgres
-- The server that the store is on from now on.
UPDATE {schema}.meta SET value = (SELECT system_identifier::text FROM pg_control_system())
WHERE name = 'system'

-- name: meta_set@postgres
-- Fixed at the first start.
INSERT INTO {schema}.meta (name, value) SELECT * FROM unnest(:names::text[], :values::text[])

-- name: migration_table@postgres
-- Which migrations were run, and what they said.
CREATE TABLE IF NOT EXISTS {schema}.migration (
    version  bigint PRIMARY KEY,
    name     text NOT NULL,
    checksum text NOT NULL,
    ran_at   timestamptz NOT NULL DEFAULT now()
)

-- name: migration_load@postgres
-- The migrations that were run, in order.
SELECT version, name, checksum FROM {schema}.migration ORDER BY version

-- name: migration_add@postgres
-- A migration that was run.
INSERT INTO {schema}.migration (version, name, checksum)
VALUES (:version::bigint, :name::text, :checksum::text)

-- name: sizes@postgres
-- How large each table is, with its indexes and what is stored beside it; rows as last counted by
-- the server, or counted here where it never did.
SELECT c.relname AS name, c.reltuples::bigint AS rows, pg_total_relation_size(c.oid) AS bytes
FROM pg_class AS c JOIN pg_namespace AS s ON s.oid = c.relnamespace
WHERE s.nspname = :schema_name::text AND c.relkind = 'r' ORDER BY c.relname

-- name: snapshots@postgres
-- Who keeps dead rows from being cleaned up, oldest first. Where the server does not say since when,
-- the first line of the log that was written after the snapshot does.
SELECT h.kind, h.name, h.about, h.now_ms - h.since_ms AS age_ms FROM (
    SELECT s.kind, s.name, s.about, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms,
           coalesce(floor(extract(epoch FROM s.since) * 1000)::bigint, (
               SELECT l.at_ms FROM {schema}.log AS l
               WHERE l.xid >= (
                   pg_snapshot_xmax(pg_current_snapshot())::text::bigint - s.age
               )::text::xid8
               ORDER BY l.xid, l.seq LIMIT 1
           )) AS since_ms
    FROM (
        SELECT 'transaction' AS kind, a.pid::text AS name, a.xact_start AS since,
               coalesce(nullif(a.application_name, ''), a.backend_type) || ' (user '
               || coalesce(a.usename, '') || ')' AS about,
               greatest(age(a.backend_xmin), age(a.backend_xid)) AS age
        FROM pg_stat_activity AS a
        WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
          AND (a.datname = current_database() OR a.backend_type = 'walsender')
          AND a.backend_type <> 'autovacuum worker' AND a.pid <> pg_backend_pid()
        UNION ALL
        SELECT 'prepared', p.gid, p.prepared, '', age(p.transaction)
        FROM pg_prepared_xacts AS p WHERE p.database = current_database()
        UNION ALL
        SELECT 'slot', r.slot_name, NULL, '', age(r.xmin)
        FROM pg_replication_slots AS r WHERE r.xmin IS NOT NULL
    ) AS s
) AS h
WHERE h.now_ms - h.since_ms >= :older_than_ms::bigint ORDER BY h.since_ms, h.name

-- name: inspect@postgres
-- What the server knows of damaged pages, and how many rows have lost what they belong to.
SELECT 'the server' AS subject, 'pages failed their checksum' AS what, coalesce(sum(checksum_failures), 0) AS count
FROM pg_stat_database WHERE datname = current_database()
UNION ALL SELECT 'table attempt', 'rows have lost the record that they belong to', count(*) FROM {schema}.attempt AS x
WHERE NOT EXISTS (SELECT FROM {schema}.execution AS e WHERE e.n = x.n)
UNION ALL SELECT 'table tag', 'rows have lost the record that they belong to', count(*) FROM {schema}.tag AS x
WHERE NOT EXISTS (SELECT FROM {schema}.execution AS e WHERE e.n = x.n)
UNION ALL SELECT 'table entry', 'rows have lost the record that they belong to', count(*) FROM {schema}.entry AS x
WHERE NOT EXISTS (SELECT FROM {schema}.execution AS e WHERE e.n = x.n)
UNION ALL SELECT 'table log', 'rows have lost the record that they belong to', count(*) FROM {schema}.log AS x
WHERE NOT EXISTS (SELECT FROM {schema}.execution AS e WHERE e.n = x.n)
UNION ALL SELECT 'table edge', 'rows have lost the record that they belong to', count(*) FROM {schema}.edge AS x
WHERE NOT EXISTS (SELECT FROM {schema}.flow AS f WHERE f.id = x.flow)
UNION ALL SELECT 'table edge_group', 'rows have lost the record that they belong to', count(*) FROM {schema}.edge_group AS x
WHERE NOT EXISTS (SELECT FROM {schema}.flow AS f WHERE f.id = x.flow)
UNION ALL SELECT 'table line', 'rows have lost the record that they belong to', count(*) FROM {schema}.line AS x
WHERE NOT EXISTS (SELECT FROM {schema}.flow AS f WHERE f.id = x.flow)
UNION ALL SELECT 'table document_word', 'rows have lost the record that they belong to', count(*)
FROM {schema}.document_word AS x WHERE NOT EXISTS (
    SELECT FROM {schema}.document AS d
    WHERE d.kind = x.kind AND d.namespace = x.namespace AND d.name = x.name
)
UNION ALL SELECT 'table document_word', 'rows match no word of their document', count(*)
FROM {schema}.document_word AS x JOIN {schema}.document AS d USING (kind, namespace, name)
WHERE x.word <> ALL (d.words)
UNION ALL SELECT 'table document_word', 'words of documents have no row', count(*)
FROM {schema}.document AS d CROSS JOIN LATERAL unnest(d.words) AS w (word) WHERE NOT EXISTS (
    SELECT FROM {schema}.document_word AS x
    WHERE x.kind = d.kind AND x.namespace = d.namespace AND x.name = d.name AND x.word = w.word
)
