-- name: member_insert@sqlite
-- New members of flows: more than a head on its own can have from the beginning.
INSERT INTO execution ({names}) VALUES {rows} ON CONFLICT (id) DO NOTHING

-- name: flow_insert@sqlite
-- New flows.
INSERT INTO flow ({names}) VALUES {rows}

-- name: flow_revs@sqlite
-- What is compared with what was seen.
SELECT json_group_object(id, rev) FROM flow WHERE id IN (SELECT value FROM json_each(?1))

-- name: flow_patch@sqlite
-- Write named columns and raise the revision; the guard was compared in this transaction.
WITH new (id{more}) AS (VALUES {rows})
UPDATE flow AS f SET {patch}rev = f.rev + 1 FROM new WHERE f.id = new.id

-- name: flow_load@sqlite
-- Flows by id.
SELECT json_group_array(json_array({columns})) FROM flow AS e
WHERE e.id IN (SELECT value FROM json_each(?1))

-- name: flow_with_lines@sqlite
-- The next flows that are free and have a line whose time has come, in the order of their ids.
-- Each step jumps to the next flow, however many lines the last one has.
WITH RECURSIVE owner (id) AS (
    SELECT min(flow) FROM line WHERE flow > ?1
    UNION ALL
    SELECT (SELECT min(flow) FROM line WHERE flow > owner.id) FROM owner WHERE owner.id IS NOT NULL
)
SELECT json_group_array(id) FROM (
    SELECT f.id FROM owner CROSS JOIN flow AS f ON f.id = owner.id
    WHERE f.busy_until_ms <= ?2 AND f.next_try_ms <= ?2 AND f.parked = ''
      AND EXISTS (SELECT 1 FROM line AS l WHERE l.flow = f.id AND l.next_try_ms <= ?2)
    LIMIT ?3
)

-- name: flow_with_lines_among@sqlite
-- Differs: only these flows, and those of them whose own timer has passed.
SELECT json_group_array(f.id) FROM json_each(?1) AS wanted CROSS JOIN flow AS f ON f.id = wanted.value
WHERE f.busy_until_ms <= ?2 AND f.next_try_ms <= ?2 AND f.parked = ''
  AND (f.due_ms <= ?2
       OR EXISTS (SELECT 1 FROM line AS l WHERE l.flow = f.id AND l.next_try_ms <= ?2))

-- name: flow_due@sqlite
-- Free flows whose own timer has passed, soonest first.
SELECT json_group_array(id) FROM (
    SELECT id FROM flow
    WHERE due_ms <= ?1 AND busy_until_ms <= ?1 AND next_try_ms <= ?1 AND parked = ''
    ORDER BY due_ms, id LIMIT ?2
)

-- name: flow_take@sqlite
-- A lease of the dispatcher: not a change of what the flow says.
UPDATE flow SET busy_until_ms = ?2 WHERE id IN (SELECT value FROM json_each(?1))

-- name: line_upsert@sqlite
-- Lines; one that is there is written anew.
INSERT INTO line ({names}) VALUES {rows}
ON CONFLICT (flow, at_ms, id) DO UPDATE SET
    about = excluded.about, failures = excluded.failures, next_try_ms = excluded.next_try_ms

-- name: line_delete@sqlite
-- Lines that are done.
WITH old (flow, at_ms, id) AS (VALUES {rows})
DELETE FROM line WHERE (flow, at_ms, id) IN (SELECT flow, at_ms, id FROM old)

-- name: line_due@sqlite
-- The oldest lines of these flows whose time has come.
SELECT json_group_array(json_array({columns})) FROM (
    SELECT *, row_number() OVER (PARTITION BY flow ORDER BY at_ms, id) AS place FROM line
    WHERE flow IN (SELECT value FROM json_each(?1)) AND next_try_ms <= ?2
    ORDER BY flow, at_ms, id
) AS e WHERE e.place <= ?3

-- name: line_load@sqlite
-- Every line of these flows.
SELECT json_group_array(json_array({columns})) FROM (
    SELECT * FROM line WHERE flow IN (SELECT value FROM json_each(?1)) ORDER BY flow, at_ms, id
) AS e

-- name: edge_insert@sqlite
-- New edges.
INSERT INTO edge ({names}) VALUES {rows} ON CONFLICT (downstream, grp, upstream) DO NOTHING

-- name: edge_resolve@sqlite
-- What became of edges.
WITH new (downstream, grp, upstream, state, generation, attempt, outcome, resolved_ms)
    AS (VALUES {rows})
UPDATE edge AS e SET
    state = new.state, generation = new.generation, attempt = new.attempt,
    outcome = new.outcome, resolved_ms = new.resolved_ms
FROM new
WHERE e.downstream = new.downstream AND e.grp = new.grp AND e.upstream = new.upstream

-- name: edge_leaving@sqlite
-- Pending edges that leave these executions, so many of each flow.
SELECT json_group_array(json_array({columns})) FROM (
    SELECT e.*, row_number() OVER (PARTITION BY e.flow ORDER BY e.upstream, e.downstream, e.grp)
        AS place
    FROM json_each(?1) AS wanted CROSS JOIN edge AS e ON e.upstream = wanted.value
    WHERE e.state NOT IN ('satisfied', 'impossible')
    ORDER BY e.flow, e.upstream, e.downstream, e.grp
) AS e WHERE e.place <= ?2

-- name: edge_entering@sqlite
-- Every edge that enters these executions.
SELECT json_group_array(json_array({columns})) FROM (
    SELECT e.* FROM json_each(?1) AS wanted CROSS JOIN edge AS e ON e.downstream = wanted.value
    ORDER BY e.upstream, e.downstream, e.grp
) AS e

-- name: edge_whole@sqlite
-- Every edge of these flows, by way of their members.
SELECT json_group_array(json_array({columns})) FROM (
    SELECT e.* FROM json_each(?1) AS wanted
    CROSS JOIN execution AS x ON x.flow = wanted.value AND x.flow <> ''
    CROSS JOIN edge AS e ON e.upstream = x.id
    ORDER BY e.upstream, e.downstream, e.grp
) AS e

-- name: group_upsert@sqlite
-- Groups, whole: only who holds the flow's revision writes them.
INSERT INTO edge_group ({names}) VALUES {rows}
ON CONFLICT (downstream, name) DO UPDATE SET
    joins = excluded.joins, k = excluded.k, on_satisfied = excluded.on_satisfied,
    on_impossible = excluded.on_impossible, sealed = excluded.sealed, state = excluded.state,
    n = excluded.n, succeeded = excluded.succeeded, failed = excluded.failed,
    skipped = excluded.skipped, decided_ms = excluded.decided_ms,
    cancel_owed = excluded.cancel_owed, cancel_reason = excluded.cancel_reason,
    owed = excluded.owed

-- name: group_load@sqlite
-- The groups of these executions.
SELECT json_group_array(json_array({columns}))
FROM json_each(?1) AS wanted CROSS JOIN edge_group AS e ON e.downstream = wanted.value

-- name: member_page@sqlite
-- Members of a flow in these states, in the order of their ids.
SELECT json_group_array(id) FROM (
    SELECT id FROM execution
    WHERE flow = ?1 AND flow <> '' AND id > ?2
      AND (?3 IS NULL OR state IN (SELECT value FROM json_each(?3)))
    ORDER BY id LIMIT ?4
)
