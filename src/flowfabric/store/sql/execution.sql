-- name: execution_insert@sqlite
-- New heads; one that exists is left alone.
WITH new ({names}) AS (VALUES {rows})
INSERT OR FAIL INTO execution ({names}) SELECT * FROM new WHERE id IS NOT NULL ON CONFLICT (id) DO NOTHING

-- name: execution_existing@sqlite
-- Which of these ids are there.
SELECT json_group_array(id) FROM execution WHERE id IN (SELECT value FROM json_each(?1))

-- name: payload_insert@sqlite
-- The inputs of new executions, beside their heads.
WITH new (id, body) AS (VALUES {rows})
INSERT OR FAIL INTO payload (n, body) SELECT e.n, new.body FROM new CROSS JOIN execution AS e ON e.id = new.id

-- name: execution_ready@sqlite
-- The best ready rows of one route, without touching them.
SELECT json_group_array(json_array(
    CAST(-priority AS INTEGER), CAST(created_ms AS INTEGER),
    iif(typeof(id) = 'text', id, ''), n
)) FROM (
    SELECT priority, created_ms, id, n FROM execution
    WHERE namespace = ?1 AND route = ?2 AND state IN ('waiting', 'orphaned', 'revoked')
    ORDER BY priority DESC, created_ms, id LIMIT ?3
)

-- name: execution_ready_each@sqlite
-- Differs: the best of each of several routes, in the order of the routes.
SELECT json_group_array(json((
    SELECT json_group_array(json_array(
        CAST(-b.priority AS INTEGER), CAST(b.created_ms AS INTEGER),
        iif(typeof(b.id) = 'text', b.id, ''), b.n
    )) FROM (
        SELECT priority, created_ms, execution.id, n FROM execution
        WHERE namespace = ?1 AND route = r.value AND state IN ('waiting', 'orphaned', 'revoked')
        ORDER BY priority DESC, created_ms, execution.id LIMIT ?3
    ) AS b
))) FROM json_each(?2) AS r

-- name: execution_ready_one@sqlite
-- One named execution, if it is ready in one of these routes.
SELECT json_group_array(json_array(
    CAST(-priority AS INTEGER), CAST(created_ms AS INTEGER),
    iif(typeof(id) = 'text', id, ''), n
)) FROM execution
WHERE id = ?1 AND namespace = ?2 AND route IN (SELECT value FROM json_each(?3))
  AND state IN ('waiting', 'orphaned', 'revoked')

-- name: execution_held@sqlite
-- What an earlier claim with this token took and holds; every lease has a timer, so the timers are
-- scanned.
SELECT json_group_array(n) FROM execution INDEXED BY execution_due
WHERE due_ms IS NOT NULL AND state = 'active' AND lease_token = ?1 AND lease_until_ms > ?2

-- name: execution_claim@sqlite
-- Copy what the last decision wrote into the lease and begin the attempt.
UPDATE execution SET
    rev = rev + 1, state = 'active', reason = 'none', attempt_state = 'running_attempt',
    epoch = epoch + 1, lease_token = ?2, lease_until_ms = ?4, renewed_ms = NULL, worker = ?3,
    attempt = next_attempt, attempt_kind = next_kind, attempt_started_ms = ?5,
    attempt_until_ms = ?5 + attempt_left_ms, started_ms = ifnull(started_ms, ?5), lost = 'none',
    due_ms = min(?4, ifnull(?5 + attempt_left_ms, ?4), ifnull(deadline_ms, ?4)), updated_ms = ?5
WHERE n IN (SELECT value FROM json_each(?1))

-- name: execution_grant@sqlite
-- Differs from the claim: the attempt does not begin, so everything about it stays as it was.
UPDATE execution SET
    rev = rev + 1, state = 'active', reason = 'granted', epoch = epoch + 1, lease_token = ?2,
    lease_until_ms = ?4, renewed_ms = NULL, worker = ?3,
    due_ms = min(?4, ifnull(deadline_ms, ?4)), updated_ms = ?5
WHERE n IN (SELECT value FROM json_each(?1))

-- name: execution_leases@sqlite
-- Claimed heads with their inputs, nothing for one whose input is missing.
SELECT json_group_array(json_array(
    json_array({columns}), iif(typeof(p.body) = 'blob', hex(p.body), NULL)
))
FROM execution AS e LEFT JOIN payload AS p ON p.n = e.n
WHERE e.n IN (SELECT value FROM json_each(?1))

-- name: execution_patch_held@sqlite
-- Write named columns where the lease is still the one that was shown.
WITH clock (now_ms) AS (VALUES (?)), new (id, held_epoch, token, reasons{more}) AS (VALUES {rows})
UPDATE OR FAIL execution AS e INDEXED BY sqlite_autoindex_execution_1 SET {patch}rev = e.rev + 1 FROM new
WHERE e.id = new.id AND e.state = 'active' AND e.epoch = new.held_epoch
  AND e.lease_token = new.token AND instr(new.reasons, e.reason) > 0
  AND e.lease_until_ms > (SELECT now_ms FROM clock)

-- name: execution_patch_held_alike@sqlite
-- Differs: every row gets the same values, as in a batch of completions, so that a row is only what
-- is compared.
WITH clock (now_ms{more}) AS (VALUES {one}), new (id, held_epoch, token, reasons) AS (VALUES {rows})
UPDATE OR FAIL execution AS e INDEXED BY sqlite_autoindex_execution_1 SET {alike}rev = e.rev + 1 FROM new
WHERE e.id = new.id AND e.state = 'active' AND e.epoch = new.held_epoch
  AND e.lease_token = new.token AND instr(new.reasons, e.reason) > 0
  AND e.lease_until_ms > (SELECT now_ms FROM clock)

-- name: execution_patch_seen@sqlite
-- Write named columns where nothing has changed since the row was read.
WITH clock (now_ms) AS (VALUES (?)), new (id, seen_rev{more}) AS (VALUES {rows})
UPDATE OR FAIL execution AS e INDEXED BY sqlite_autoindex_execution_1 SET {patch}rev = e.rev + 1 FROM new
WHERE e.id = new.id AND e.rev = new.seen_rev

-- name: execution_patch_seen_alike@sqlite
-- Differs: every row gets the same values, as when a batch of members is handed over.
WITH clock (now_ms{more}) AS (VALUES {one}), new (id, seen_rev) AS (VALUES {rows})
UPDATE OR FAIL execution AS e INDEXED BY sqlite_autoindex_execution_1 SET {alike}rev = e.rev + 1 FROM new
WHERE e.id = new.id AND e.rev = new.seen_rev

-- name: execution_load@sqlite
-- Heads by id.
SELECT json_group_array(json_array({columns})) FROM execution AS e INDEXED BY sqlite_autoindex_execution_1
WHERE e.id IN (SELECT value FROM json_each(?1))

-- name: payload_load@sqlite
-- Inputs by id, nothing for one whose input is missing.
SELECT json_group_array(json_array(e.id, iif(typeof(p.body) = 'blob', hex(p.body), NULL)))
FROM execution AS e LEFT JOIN payload AS p ON p.n = e.n
WHERE e.id IN (SELECT value FROM json_each(?1))

-- name: execution_ends@sqlite
-- How executions ended, as far as a caller who waits for them needs to know.
SELECT json_group_array(json_array(
    e.id, e.state, e.outcome_detail, e.outcome_category,
    iif(typeof(a.result) = 'blob', hex(a.result), NULL)
))
FROM execution AS e INDEXED BY sqlite_autoindex_execution_1
LEFT JOIN attempt AS a ON a.n = e.n AND a.attempt = e.attempt
WHERE e.id IN (SELECT value FROM json_each(?1))

-- name: execution_due@sqlite
-- Rows whose timer has passed, soonest first.
SELECT json_group_array(json_array({columns})) FROM (
    SELECT * FROM execution INDEXED BY execution_due
    WHERE due_ms <= ?1 ORDER BY due_ms, id LIMIT ?2
) AS e

-- name: execution_next_due@sqlite
-- When the next timer passes; what is no time sorts behind all of them.
SELECT iif(typeof(min(due_ms)) = 'integer', min(due_ms), NULL)
FROM execution INDEXED BY execution_due WHERE due_ms > ?1

-- name: clock@postgres
-- The beginning of every writing statement: the store's time, and whether the caller's fits it and
-- the schema is still of the caller's version.
WITH clock AS MATERIALIZED (
    SELECT c.now_ms, abs(c.now_ms - coalesce(:caller_ms::bigint, c.now_ms)) <= :skew_ms::bigint
        AND NOT EXISTS (SELECT FROM {schema}.migration WHERE version > :known_version::bigint) AS fits
    FROM (SELECT {now} AS now_ms) AS c
)

-- name: clock_now@postgres
-- The store's time.
SELECT {now} AS now_ms

-- name: execution_insert@postgres
-- New heads with what is written once beside them; one that exists is left alone.
{clock}, created AS (
    INSERT INTO {schema}.execution ({columns}, payload)
    SELECT {given}, t.payload FROM (SELECT {arrays}, unnest(:payloads::bytea[]) AS payload) AS t
    WHERE (SELECT fits FROM clock)
    ON CONFLICT (id) DO NOTHING
    RETURNING n, id, lane, state, attempt, epoch
){beside}
SELECT c.now_ms, c.fits, (SELECT count(*) FROM created) AS written,
       CASE WHEN (SELECT count(*) FROM created) < :total::bigint
            THEN ARRAY(SELECT id FROM created) END AS ids,
       {notify}
FROM clock AS c

-- name: execution_insert_keyed@postgres
-- Differs: keys are looked up first and taken before their executions are written. What is found
-- out too late, because somebody took a key or an id meanwhile, undoes the statement.
{clock}, looked AS MATERIALIZED (
    SELECT t.*, k.id AS known_id, k.digest AS known_digest, e.n AS known_n
    FROM (
        SELECT {arrays}, unnest(:payloads::bytea[]) AS payload, unnest(:keys::text[]) AS key,
               unnest(:digests::text[]) AS digest, unnest(:untils_ms::bigint[]) AS until_ms,
               generate_subscripts(:payloads::bytea[], 1) AS position
    ) AS t
    LEFT JOIN {schema}.idempotency AS k
        ON k.namespace = t.namespace AND k.key = t.key AND k.until_ms > :now_ms::bigint
    LEFT JOIN {schema}.execution AS e ON e.id = t.id
    WHERE (SELECT fits FROM clock)
), fresh AS MATERIALIZED (
    SELECT * FROM looked WHERE known_id IS NULL AND known_n IS NULL
), keyed AS (
    INSERT INTO {schema}.idempotency AS k (namespace, key, id, digest, until_ms)
    SELECT namespace, key, id, digest, until_ms FROM fresh WHERE key IS NOT NULL
    ORDER BY namespace, key
    ON CONFLICT (namespace, key) DO UPDATE SET
        id = excluded.id, digest = excluded.digest, until_ms = excluded.until_ms
        WHERE k.until_ms <= :now_ms::bigint
    RETURNING 1
), created AS (
    INSERT INTO {schema}.execution ({columns}, payload)
    SELECT {given}, t.payload FROM fresh AS t WHERE (SELECT count(*) FROM keyed) >= 0
    ORDER BY t.position
    ON CONFLICT (id) DO NOTHING
    RETURNING n, id, lane, state, attempt, epoch
){beside}
SELECT c.now_ms, c.fits, l.position, l.known_id, l.known_digest,
       CASE WHEN (SELECT count(*) FROM created) < (SELECT count(*) FROM fresh)
              OR (SELECT count(*) FROM keyed) < (SELECT count(key) FROM fresh)
            THEN {schema}.raced() END AS raced,
       {notify}
FROM clock AS c LEFT JOIN looked AS l ON l.known_id IS NOT NULL OR l.known_n IS NOT NULL

-- name: execution_look@postgres
-- Which of these are there, by a key that is alive or by their ids.
{clock}, looked AS (
    SELECT t.position, k.id AS known_id, k.digest AS known_digest
    FROM unnest(:ids::text[], :namespaces::text[], :keys::text[])
        WITH ORDINALITY AS t (id, namespace, key, position)
    LEFT JOIN {schema}.idempotency AS k
        ON k.namespace = t.namespace AND k.key = t.key AND k.until_ms > :now_ms::bigint
    LEFT JOIN {schema}.execution AS e ON e.id = t.id
    WHERE k.id IS NOT NULL OR e.n IS NOT NULL
)
SELECT c.now_ms, c.fits, l.position, l.known_id, l.known_digest
FROM clock AS c LEFT JOIN looked AS l ON true

-- name: insert_beside@postgres
-- The part of an insert that writes a line and the lane of every new execution.
, logged AS (
    INSERT INTO {schema}.log (n, id, at_ms, kind, state, attempt, epoch, detail)
    SELECT n, id, :now_ms::bigint, 'submitted', state, attempt, epoch, '{{}}' FROM created
), laned AS (
    INSERT INTO {schema}.lane (name) SELECT DISTINCT lane FROM created ORDER BY lane
    ON CONFLICT (name) DO NOTHING
)

-- name: insert_tags@postgres
-- The part of an insert that writes tags, given as one object by id.
, tagged AS (
    INSERT INTO {schema}.tag (n, key, value)
    SELECT c.n, t.key, t.value FROM created AS c, jsonb_each_text(:tags::jsonb -> c.id) AS t
)

-- name: picked_route@postgres
-- The part of a claim that takes the best of one route: what others are taking is passed over.
SELECT e.id FROM {schema}.execution AS e
WHERE e.namespace = :namespace::text AND e.route = :route::text
  AND e.state IN ('waiting', 'orphaned', 'revoked') AND (SELECT fits FROM before)
ORDER BY e.priority DESC, e.created_ms, e.id LIMIT :limit::bigint
FOR UPDATE SKIP LOCKED

-- name: peeked_routes@postgres
-- The part of a claim that looks at a few of the best of each route and merges them. A route whose
-- few are all among those that would be taken is looked at again, further: it may have better ones.
WITH few AS MATERIALIZED (
    SELECT l.name, p.priority, p.created_ms, p.id, p.place
    FROM unnest(:routes::text[]) AS l (name) CROSS JOIN LATERAL (
        SELECT b.priority, b.created_ms, b.id, row_number() OVER () AS place FROM (
            SELECT x.priority, x.created_ms, x.id FROM {schema}.execution AS x
            WHERE x.namespace = :namespace::text AND x.route = l.name
              AND x.state IN ('waiting', 'orphaned', 'revoked')
            ORDER BY x.priority DESC, x.created_ms, x.id LIMIT :depth::bigint
        ) AS b
    ) AS p
), cut AS MATERIALIZED (
    SELECT priority, created_ms, id FROM few
    ORDER BY priority DESC, created_ms, id OFFSET greatest(:limit::bigint - 1, 0) LIMIT 1
), again AS MATERIALIZED (
    SELECT f.name FROM few AS f WHERE f.place = :depth::bigint AND NOT EXISTS (
        SELECT FROM cut AS c WHERE c.priority > f.priority
            OR (c.priority = f.priority AND (c.created_ms, c.id) < (f.created_ms, f.id))
    )
)
SELECT priority, created_ms, id FROM few WHERE name NOT IN (SELECT a.name FROM again AS a)
UNION ALL
SELECT p.priority, p.created_ms, p.id FROM again AS a CROSS JOIN LATERAL (
    SELECT x.priority, x.created_ms, x.id FROM {schema}.execution AS x
    WHERE x.namespace = :namespace::text AND x.route = a.name
      AND x.state IN ('waiting', 'orphaned', 'revoked')
    ORDER BY x.priority DESC, x.created_ms, x.id LIMIT :peek::bigint
) AS p
ORDER BY 1 DESC, 2, 3 LIMIT :peek::bigint

-- name: peeked_above@postgres
-- Differs: each route is looked at from a key on, in the two ranges that an index can begin with.
SELECT p.priority, p.created_ms, p.id
FROM unnest(:routes::text[], :priorities::bigint[], :created_ms::bigint[], :ids::text[])
    AS l (name, priority, created_ms, id)
CROSS JOIN LATERAL (
    (SELECT x.priority, x.created_ms, x.id FROM {schema}.execution AS x
     WHERE x.namespace = :namespace::text AND x.route = l.name AND x.priority = l.priority
       AND (x.created_ms, x.id) >= (l.created_ms, l.id)
       AND x.state IN ('waiting', 'orphaned', 'revoked')
     ORDER BY x.created_ms, x.id LIMIT :peek::bigint)
    UNION ALL
    (SELECT x.priority, x.created_ms, x.id FROM {schema}.execution AS x
     WHERE x.namespace = :namespace::text AND x.route = l.name AND x.priority < l.priority
       AND x.state IN ('waiting', 'orphaned', 'revoked')
     ORDER BY x.priority DESC, x.created_ms, x.id LIMIT :peek::bigint)
    LIMIT :peek::bigint
) AS p
ORDER BY p.priority DESC, p.created_ms, p.id LIMIT :peek::bigint

-- name: picked_routes@postgres
-- Differs: only the best of what was peeked at is locked, if it is still ready. The state is asked
-- for in a way that leads to the rows by id, not to the index of all that is ready.
SELECT e.id FROM peeked AS p JOIN {schema}.execution AS e ON e.id = p.id
WHERE coalesce(e.state, '') IN ('waiting', 'orphaned', 'revoked') AND (SELECT fits FROM before)
ORDER BY p.priority DESC, p.created_ms, p.id LIMIT :limit::bigint
FOR UPDATE OF e SKIP LOCKED

-- name: peeked_nothing@postgres
-- Differs: where one route or one execution is asked for, there is nothing to merge.
SELECT 0 AS id WHERE false

-- name: picked_one@postgres
-- Differs: one named execution, if it is ready in one of these routes.
SELECT e.id FROM {schema}.execution AS e
WHERE e.id = :only::text AND e.namespace = :namespace::text AND e.route = ANY (:routes::text[])
  AND e.state IN ('waiting', 'orphaned', 'revoked') AND (SELECT fits FROM before)
LIMIT :limit::bigint
FOR UPDATE SKIP LOCKED

-- name: execution_claim@postgres
-- Copy what the last decision wrote into the lease, and begin the attempt or only grant it.
{clock}, before AS MATERIALIZED (
    SELECT now_ms, fits, {entries} AS entries FROM clock
), peeked AS MATERIALIZED (
    {peeked}
), picked AS MATERIALIZED (
    {picked}
), claimed AS (
    UPDATE {schema}.execution AS e SET
        rev = e.rev + 1, state = 'active', epoch = e.epoch + 1, lease_token = :token::text,
        lease_until_ms = :until_ms::bigint, renewed_ms = NULL, worker = :worker::text,
        updated_ms = :now_ms::bigint, {begun}
    FROM picked AS p WHERE e.id = p.id
    RETURNING e.*
), logged AS (
    INSERT INTO {schema}.log (n, id, at_ms, kind, state, attempt, epoch, detail)
    SELECT n, id, :now_ms::bigint, :line::text, state, attempt, epoch,
           json_build_object('worker', worker, 'kind', next_kind)
    FROM claimed ORDER BY priority DESC, created_ms, id
)
SELECT c.now_ms, c.fits, (SELECT count(*) FROM peeked) AS peeked,
       {entries} - c.entries AS entries, e.payload, {heads}
FROM before AS c LEFT JOIN claimed AS e ON true
ORDER BY e.priority DESC, e.created_ms, e.id

-- name: entries@postgres
-- How many entries of an index this connection has read, dead ones among them.
pg_stat_get_xact_tuples_returned('{schema}.{index}'::regclass)

-- name: claim_begun@postgres
-- The part of a claim that begins the attempt.
reason = 'none', attempt_state = 'running_attempt', attempt = e.next_attempt,
attempt_kind = e.next_kind, attempt_started_ms = :now_ms::bigint,
attempt_until_ms = :now_ms::bigint + e.attempt_left_ms,
started_ms = coalesce(e.started_ms, :now_ms::bigint), lost = 'none',
due_ms = least(:until_ms::bigint, :now_ms::bigint + e.attempt_left_ms, e.deadline_ms)

-- name: claim_granted@postgres
-- Differs: the attempt does not begin, so everything about it stays as it was.
reason = 'granted', due_ms = least(:until_ms::bigint, e.deadline_ms)

-- name: execution_held@postgres
-- What an earlier claim with this token took and holds; every lease has a timer, so the timers are
-- scanned.
{clock}
SELECT c.now_ms, c.fits, 0::bigint AS peeked, 0::bigint AS entries, e.payload, {heads}
FROM clock AS c LEFT JOIN {schema}.execution AS e
    ON e.due_ms IS NOT NULL AND e.state = 'active' AND e.lease_token = :token::text
    AND e.lease_until_ms > c.now_ms
ORDER BY e.priority DESC, e.created_ms, e.id

-- name: guard_held@postgres
-- The guard of a worker: the lease is still the one that was shown. The time is that of the
-- statement's beginning: a guard whose parts could change between two looks at a row would be
-- judged by the row before it was locked.
e.state = 'active' AND e.epoch = t.held_epoch AND e.lease_token = t.held_token
AND strpos(t.held_reasons, e.reason) > 0
AND e.lease_until_ms > (SELECT now_ms FROM clock)

-- name: guard_seen@postgres
-- The guard of an engine: nothing has changed since the row was read.
e.rev = t.seen_rev

-- name: execution_apply@postgres
-- Write named columns where the guard holds. Rows are locked in the order of their ids, so that
-- two batches can never deadlock; guards are judged by the rows as they were when locked, and those
-- are what a refusal shows. `whole`: all of them or none.
{clock}, locked AS MATERIALIZED (
    SELECT e.id, t.position{more_t}, coalesce({guard}, false) AS holds,
           CASE WHEN coalesce({guard}, false) THEN NULL
                ELSE json_build_array({heads})::text END AS refused
    FROM (
        SELECT unnest(:ids::text[]) AS given_id, {arrays},
               generate_subscripts(:ids::text[], 1) AS position
    ) AS t
    JOIN {schema}.execution AS e ON e.id = t.given_id
    WHERE (SELECT fits FROM clock)
    ORDER BY e.id FOR UPDATE OF e
), good AS MATERIALIZED (
    SELECT l.id, l.position{more_l} FROM locked AS l WHERE l.holds AND (
        NOT :whole::boolean OR (SELECT count(*) FILTER (WHERE holds) FROM locked) = :total::bigint
    )
), applied AS (
    UPDATE {schema}.execution AS e SET {patch}rev = e.rev + 1
    FROM good AS g WHERE e.id = g.id
    RETURNING e.n, e.id, e.state, e.attempt, e.epoch, g.position{more_g}
){beside}
SELECT c.now_ms, c.fits, (SELECT count(*) FROM applied) AS written,
       CASE WHEN (SELECT count(*) FROM applied) < :total::bigint
            THEN ARRAY(SELECT id FROM applied) END AS ids,
       {notify}, l.refused
FROM clock AS c LEFT JOIN locked AS l ON NOT l.holds

-- name: apply_lines@postgres
-- The part of an apply that appends lines, in the order of the batch.
, logged AS (
    INSERT INTO {schema}.log (n, id, at_ms, kind, state, attempt, epoch, detail)
    SELECT n, id, :now_ms::bigint, line_kind, state, attempt, epoch, line_detail::json FROM applied
    WHERE line_kind IS NOT NULL ORDER BY position
)

-- name: apply_attempts@postgres
-- The part of an apply that keeps attempts as their leases end. How and when an attempt first began
-- is never overwritten, and who worked on it only by somebody who did.
, kept_{applied} AS (
    INSERT INTO {schema}.attempt AS a (n, {attempt_columns})
    SELECT n, {attempt_values} FROM {applied} WHERE kept_lifecycle IS NOT NULL
    ON CONFLICT (n, attempt) DO UPDATE SET
        lifecycle = excluded.lifecycle,
        worker = CASE WHEN excluded.worker = '' THEN a.worker ELSE excluded.worker END,
        epoch = CASE WHEN excluded.worker = '' THEN a.epoch ELSE excluded.epoch END,
        ended_ms = excluded.ended_ms, detail = excluded.detail, category = excluded.category,
        result = excluded.result
)

-- name: notify@postgres
-- One notice for a whole batch, if something was written.
(SELECT pg_notify(:channel::text, :notice::text)
 WHERE :notice::text <> '' AND EXISTS (SELECT FROM {written})) AS told

-- name: execution_lock@postgres
-- Lock many rows in the order of their ids, before changes of several shapes.
{clock}, locked AS MATERIALIZED (
    SELECT e.id FROM unnest(:ids::text[]) AS t (id) JOIN {schema}.execution AS e ON e.id = t.id
    WHERE (SELECT fits FROM clock) ORDER BY e.id FOR UPDATE OF e
)
SELECT now_ms, fits, (SELECT count(*) FROM locked) AS found FROM clock

-- name: execution_load@postgres
-- Heads by id, with what was asked for beside them; one row for each attempt if attempts were.
SELECT {heads},
       CASE WHEN :payload::boolean AND a.first THEN e.payload END AS payload,
       CASE WHEN :tags::boolean AND a.first THEN
           (SELECT jsonb_object_agg(t.key, t.value)::text FROM {schema}.tag AS t WHERE t.n = e.n)
       END AS tags, {attempts}
FROM unnest(:ids::text[]) WITH ORDINALITY AS w (id, position)
JOIN {schema}.execution AS e ON e.id = w.id
CROSS JOIN LATERAL (
    SELECT true AS first, {no_attempt} WHERE NOT :attempts::boolean
        OR NOT EXISTS (SELECT FROM {schema}.attempt AS x WHERE x.n = e.n)
    UNION ALL
    SELECT row_number() OVER (ORDER BY x.attempt) = 1, {of_attempt} FROM {schema}.attempt AS x
    WHERE :attempts::boolean AND x.n = e.n
) AS a
ORDER BY w.position, a.attempt

-- name: execution_ends@postgres
-- How executions ended, as far as a caller who waits for them needs to know.
SELECT e.id, e.state, e.outcome_detail, e.outcome_category, a.result
FROM unnest(:ids::text[]) AS w (id) JOIN {schema}.execution AS e ON e.id = w.id
LEFT JOIN {schema}.attempt AS a ON a.n = e.n AND a.attempt = e.attempt

-- name: execution_due@postgres
-- Rows whose timer has passed, soonest first, and when the next one will; both from a time on before
-- which there is nothing. Entries are counted from before the first one is read. Then documents of
-- these kinds whose time has come: rows of the answer are of one or of the other.
WITH before AS MATERIALIZED (
    SELECT {entries} AS entries
)
SELECT later.next_ms, {entries} - b.entries AS entries, later.next_document_ms, d.kind AS kind_of,
       d.namespace AS namespace_of, d.name, d.rev AS rev_of, d.due_ms AS due_ms_of, d.words, d.body,
       {heads}
FROM before AS b CROSS JOIN LATERAL (
    SELECT (
        SELECT x.due_ms FROM {schema}.execution AS x
        WHERE x.due_ms > :later_ms::bigint AND b.entries >= 0 ORDER BY x.due_ms LIMIT 1
    ) AS next_ms, (
        SELECT min((
            SELECT x.due_ms FROM {schema}.document AS x
            WHERE x.kind = k.kind AND x.due_ms > :now_ms::bigint ORDER BY x.due_ms LIMIT 1
        )) FROM unnest(:kinds::text[]) AS k (kind)
    ) AS next_document_ms OFFSET 0
) AS later CROSS JOIN (VALUES (0), (1)) AS half (number) LEFT JOIN LATERAL (
    SELECT * FROM {schema}.execution AS x
    WHERE x.due_ms >= :since_ms::bigint AND x.due_ms <= :now_ms::bigint AND b.entries >= 0
      AND half.number = 0
    ORDER BY x.due_ms, x.id LIMIT :limit::bigint
) AS e ON true LEFT JOIN LATERAL (
    SELECT x.* FROM unnest(:kinds::text[]) AS k (kind) CROSS JOIN LATERAL (
        SELECT * FROM {schema}.document AS y
        WHERE y.kind = k.kind AND y.due_ms <= :now_ms::bigint AND half.number = 1
        ORDER BY y.due_ms, y.namespace, y.name LIMIT :limit::bigint
    ) AS x
    ORDER BY x.due_ms, x.kind, x.namespace, x.name LIMIT :limit::bigint
) AS d ON true
ORDER BY half.number, e.due_ms, e.id, d.due_ms, d.kind, d.namespace, d.name
