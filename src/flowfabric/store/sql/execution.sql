-- name: execution_insert@sqlite
-- New heads; one that exists is left alone.
INSERT INTO execution ({columns}) VALUES {rows} ON CONFLICT (id) DO NOTHING

-- name: execution_existing@sqlite
-- Which of these ids are there.
SELECT json_group_array(id) FROM execution WHERE id IN (SELECT value FROM json_each(?1))

-- name: payload_insert@sqlite
-- The inputs of new executions, beside their heads.
WITH new (id, body) AS (VALUES {rows})
INSERT INTO payload (n, body) SELECT e.n, new.body FROM new CROSS JOIN execution AS e ON e.id = new.id

-- name: execution_ready@sqlite
-- The best ready rows of one lane, without touching them.
SELECT json_group_array(json_array(-priority, created_ms, id, n)) FROM (
    SELECT priority, created_ms, id, n FROM execution
    WHERE namespace = ?1 AND lane = ?2 AND state IN ('waiting', 'orphaned', 'revoked')
    ORDER BY priority DESC, created_ms, id LIMIT ?3
)

-- name: execution_ready_one@sqlite
-- One named execution, if it is ready in one of these lanes.
SELECT json_group_array(json_array(-priority, created_ms, id, n)) FROM execution
WHERE id = ?1 AND namespace = ?2 AND lane IN (SELECT value FROM json_each(?3))
  AND state IN ('waiting', 'orphaned', 'revoked')

-- name: execution_held@sqlite
-- What an earlier claim with this token took; every lease has a timer, so the timers are scanned.
SELECT json_group_array(n) FROM execution
WHERE due_ms IS NOT NULL AND state = 'active' AND lease_token = ?1

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
-- Claimed heads with their inputs.
SELECT json_group_array(json_array(json_array({columns}), hex(p.body)))
FROM execution AS e CROSS JOIN payload AS p ON p.n = e.n
WHERE e.n IN (SELECT value FROM json_each(?1))

-- name: execution_patch_held@sqlite
-- Write named columns where the lease is still the one that was shown.
WITH clock (now_ms) AS (VALUES (?)), new (id, held_epoch, token, started{more}) AS (VALUES {rows})
UPDATE execution AS e SET {patch}rev = e.rev + 1 FROM new
WHERE e.id = new.id AND e.state = 'active' AND e.epoch = new.held_epoch
  AND e.lease_token = new.token AND (e.reason <> 'granted') = new.started
  AND e.lease_until_ms > (SELECT now_ms FROM clock)

-- name: execution_patch_alike@sqlite
-- Differs: every row gets the same values, as a batch of completions does, so the rows to compare
-- are four cells wide instead of fifteen.
WITH clock (now_ms{more}) AS (VALUES {one}), new (id, held_epoch, token, started) AS (VALUES {rows})
UPDATE execution AS e SET {alike}rev = e.rev + 1 FROM new
WHERE e.id = new.id AND e.state = 'active' AND e.epoch = new.held_epoch
  AND e.lease_token = new.token AND (e.reason <> 'granted') = new.started
  AND e.lease_until_ms > (SELECT now_ms FROM clock)

-- name: execution_patch_seen@sqlite
-- Write named columns where nothing has changed since the row was read.
WITH new (id, seen_rev{more}) AS (VALUES {rows})
UPDATE execution AS e SET {patch}rev = e.rev + 1 FROM new
WHERE e.id = new.id AND e.rev = new.seen_rev

-- name: execution_load@sqlite
-- Heads by id.
SELECT json_group_array(json_array({columns})) FROM execution AS e
WHERE e.id IN (SELECT value FROM json_each(?1))

-- name: payload_load@sqlite
-- Inputs by id.
SELECT json_group_array(json_array(e.id, hex(p.body)))
FROM execution AS e CROSS JOIN payload AS p ON p.n = e.n
WHERE e.id IN (SELECT value FROM json_each(?1))

-- name: execution_ends@sqlite
-- How executions ended, as far as a caller who waits for them needs to know.
SELECT json_group_array(json_array(
    e.id, e.state, e.outcome_detail, e.outcome_category, hex(a.result)
))
FROM execution AS e LEFT JOIN attempt AS a ON a.n = e.n AND a.attempt = e.attempt
WHERE e.id IN (SELECT value FROM json_each(?1))

-- name: execution_due@sqlite
-- Rows whose timer has passed, soonest first.
SELECT json_group_array(json_array({columns})) FROM (
    SELECT * FROM execution WHERE due_ms <= ?1 ORDER BY due_ms, id LIMIT ?2
) AS e

-- name: execution_due_ids@sqlite
-- Differs: only what can be read of any row, for when one of them spoils the answer.
SELECT json_group_array(id) FROM (
    SELECT id FROM execution WHERE due_ms <= ?1 ORDER BY due_ms, id LIMIT ?2
)

-- name: execution_outline@sqlite
-- What can be read of any row.
SELECT json_group_array(json_array(id, rev, failures)) FROM execution
WHERE id IN (SELECT value FROM json_each(?1))

-- name: execution_next_due@sqlite
-- When the next timer passes.
SELECT min(due_ms) FROM execution WHERE due_ms > ?1

-- name: execution_find@sqlite
-- Heads that fit every condition that is set, in order of their ids.
SELECT json_group_array(json_array({columns})) FROM (
    SELECT * FROM execution AS x
    WHERE id > ?1 AND id < ?2
      AND (?3 IS NULL OR namespace = ?3)
      AND (?4 IS NULL OR lane = ?4)
      AND (?5 IS NULL OR kind = ?5)
      AND (?6 IS NULL OR state IN (SELECT value FROM json_each(?6)))
      AND (flow = '' OR EXISTS (SELECT 1 FROM flow AS f WHERE f.id = x.flow AND f.is_open))
      AND NOT EXISTS (
          SELECT 1 FROM json_each(?7) AS wanted
          WHERE NOT EXISTS (
              SELECT 1 FROM tag AS t
              WHERE t.n = x.n AND t.key = wanted.key AND t.value = wanted.value
          )
      )
    ORDER BY id LIMIT ?8
) AS e
