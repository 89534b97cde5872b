-- name: flow_insert@sqlite
-- New flows; one that exists is left alone.
WITH new ({names}) AS (VALUES {rows})
INSERT OR FAIL INTO flow ({names}) SELECT * FROM new WHERE id IS NOT NULL ON CONFLICT (id) DO NOTHING

-- name: flow_revs@sqlite
-- What is compared with what was seen.
SELECT json_group_object(id, iif(typeof(rev) = 'integer', rev, NULL)) FROM flow WHERE id IN (SELECT value FROM json_each(?1))

-- name: flow_present@sqlite
-- Count those that are there: what is written is what they are.
WITH new (id) AS (VALUES {rows})
UPDATE OR FAIL flow AS e SET rev = e.rev FROM new WHERE e.id = new.id

-- name: flow_patch@sqlite
-- Write named columns and raise the revision where nothing has changed since the flow was read.
WITH new (id, seen_rev{more}) AS (VALUES {rows})
UPDATE OR FAIL flow AS f SET {patch}rev = f.rev + 1 FROM new WHERE f.id = new.id AND f.rev = new.seen_rev

-- name: flow_load@sqlite
-- Flows by id.
SELECT json_group_array(json_array({columns})) FROM flow AS e
WHERE e.id IN (SELECT value FROM json_each(?1))

-- name: flow_find@sqlite
-- Flows that fit, or are in a state that nobody knows, in the order of their ids.
SELECT json_group_array(json_array({columns})) FROM (
    SELECT * FROM flow
    WHERE id > ?1 AND is_open <> 0 AND (?2 IS NULL OR namespace = ?2) AND (?3 IS NULL OR name = ?3)
      AND (?4 IS NULL OR state IN (SELECT value FROM json_each(?4))
           OR state NOT IN (SELECT value FROM json_each(?6)))
    ORDER BY id LIMIT ?5
) AS e

-- name: flow_find_unsettled@sqlite
-- Differs: only those that are not settled, which are few.
SELECT json_group_array(json_array({columns})) FROM (
    SELECT * FROM flow INDEXED BY flow_unsettled
    WHERE id > ?1 AND NOT settled AND is_open <> 0 AND (?2 IS NULL OR namespace = ?2)
      AND (?3 IS NULL OR name = ?3)
      AND (?4 IS NULL OR state IN (SELECT value FROM json_each(?4))
           OR state NOT IN (SELECT value FROM json_each(?6)))
    ORDER BY id LIMIT ?5
) AS e

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
    WHERE f.busy_until_ms <= ?2 AND f.next_try_ms <= ?2 AND f.parked = '' AND typeof(f.id) = 'text'
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
-- Free flows whose own timer has passed, in the order of their ids and round to the first.
SELECT json_group_array(id) FROM (
    SELECT id FROM flow INDEXED BY flow_due
    WHERE due_ms <= ?2 AND busy_until_ms <= ?2 AND next_try_ms <= ?2 AND parked = ''
      AND typeof(id) = 'text'
    ORDER BY id <= ?1, id LIMIT ?3
)

-- name: flow_next@sqlite
-- When the next flow has something to do that has not now, or is free that is not: timers of flows,
-- flows and lines that were put back, and leases of flows that have something to do already.
WITH RECURSIVE owner (id) AS (
    SELECT min(flow) FROM line
    UNION ALL
    SELECT (SELECT min(flow) FROM line WHERE flow > owner.id) FROM owner WHERE owner.id IS NOT NULL
)
SELECT min(at_ms) FROM (
    SELECT * FROM (
        SELECT due_ms AS at_ms FROM flow WHERE due_ms > ?1 AND parked = '' ORDER BY due_ms LIMIT 1
    ) UNION ALL SELECT * FROM (
        SELECT next_try_ms FROM flow WHERE next_try_ms > ?1 AND next_try_ms > 0 AND parked = ''
        ORDER BY next_try_ms LIMIT 1
    ) UNION ALL SELECT * FROM (
        SELECT next_try_ms FROM line WHERE next_try_ms > ?1 AND next_try_ms > 0
        ORDER BY next_try_ms LIMIT 1
    ) UNION ALL
    SELECT min(busy_until_ms) FROM flow WHERE due_ms <= ?1 AND busy_until_ms > ?1 AND parked = ''
    UNION ALL
    SELECT min(f.busy_until_ms) FROM owner CROSS JOIN flow AS f ON f.id = owner.id
    WHERE f.busy_until_ms > ?1 AND f.parked = ''
) WHERE typeof(at_ms) = 'integer'

-- name: flow_take@sqlite
-- A lease of the dispatcher: not a change of what the flow says.
UPDATE flow SET busy_until_ms = ?2 WHERE id IN (SELECT value FROM json_each(?1))

-- name: line_upsert@sqlite
-- Lines; one that is there is written anew.
WITH new ({names}) AS (VALUES {rows})
INSERT OR FAIL INTO line ({names}) SELECT * FROM new WHERE id IS NOT NULL
ON CONFLICT (flow, at_ms, id) DO UPDATE SET
    about = excluded.about, failures = excluded.failures, next_try_ms = excluded.next_try_ms

-- name: line_delete@sqlite
-- Lines that are done.
WITH old (flow, at_ms, id) AS (VALUES {rows})
DELETE FROM line WHERE (flow, at_ms, id) IN (
    SELECT l.flow, l.at_ms, l.id FROM old CROSS JOIN line AS l
        ON l.flow = old.flow AND l.at_ms = old.at_ms AND l.id = old.id
)

-- name: line_due@sqlite
-- The oldest lines of these flows whose time has come. How far to look is found out first: a flow may
-- have any number of lines.
WITH wanted (flow, last_ms) AS MATERIALIZED (
    SELECT w.value, (
        SELECT l.at_ms FROM line AS l WHERE l.flow = w.value AND l.next_try_ms <= ?2
        ORDER BY l.at_ms, l.id LIMIT 1 OFFSET ?3 - 1
    ) FROM (SELECT DISTINCT value FROM json_each(?1)) AS w
)
SELECT json_group_array(json_array({columns})) FROM (
    SELECT l.*, row_number() OVER (PARTITION BY l.flow ORDER BY l.at_ms, l.id) AS place
    FROM wanted CROSS JOIN line AS l ON l.flow = wanted.flow
        AND l.at_ms <= ifnull(wanted.last_ms, 9223372036854775807)
    WHERE l.next_try_ms <= ?2 ORDER BY l.flow, l.at_ms, l.id
) AS e WHERE e.place <= ?3

-- name: line_load@sqlite
-- Every line of these flows.
SELECT json_group_array(json_array({columns})) FROM (
    SELECT * FROM line WHERE flow IN (SELECT value FROM json_each(?1)) ORDER BY flow, at_ms, id
) AS e

-- name: edge_insert@sqlite
-- New edges.
WITH new ({names}) AS (VALUES {rows})
INSERT OR FAIL INTO edge ({names}) SELECT * FROM new WHERE flow IS NOT NULL
ON CONFLICT (flow, downstream, grp, upstream) DO NOTHING

-- name: edge_resolve@sqlite
-- What became of edges.
WITH new (flow, downstream, grp, upstream, state, generation, attempt, outcome, resolved_ms)
    AS (VALUES {rows})
UPDATE OR FAIL edge AS e INDEXED BY sqlite_autoindex_edge_1 SET
    state = new.state, generation = new.generation, attempt = new.attempt,
    outcome = new.outcome, resolved_ms = new.resolved_ms
FROM new
WHERE e.flow = new.flow AND e.downstream = new.downstream AND e.grp = new.grp
  AND e.upstream = new.upstream

-- name: edge_leaving@sqlite
-- Pending edges that leave these members of flows, so many of each flow.
SELECT json_group_array(json_array({columns})) FROM (
    SELECT e.*, row_number() OVER (PARTITION BY e.flow ORDER BY e.upstream, e.downstream, e.grp)
        AS place
    FROM json_each(?1) AS wanted CROSS JOIN edge AS e INDEXED BY edge_leaving
        ON e.flow = json_extract(wanted.value, '$[0]')
        AND e.upstream = json_extract(wanted.value, '$[1]')
    WHERE e.state NOT IN ('satisfied', 'impossible')
    ORDER BY e.flow, e.upstream, e.downstream, e.grp
) AS e WHERE e.place <= ?2

-- name: edge_leaving_few@sqlite
-- Differs: so many of all flows together. Fewer than that are all there are.
SELECT json_group_array(json_array({columns})) FROM (
    SELECT e.* FROM json_each(?1) AS wanted CROSS JOIN edge AS e INDEXED BY edge_leaving
        ON e.flow = json_extract(wanted.value, '$[0]')
        AND e.upstream = json_extract(wanted.value, '$[1]')
    WHERE e.state NOT IN ('satisfied', 'impossible') LIMIT ?2
) AS e

-- name: edge_entering@sqlite
-- Every edge that enters these members of flows.
SELECT json_group_array(json_array({columns})) FROM (
    SELECT e.* FROM json_each(?1) AS wanted CROSS JOIN edge AS e
        ON e.flow = json_extract(wanted.value, '$[0]')
        AND e.downstream = json_extract(wanted.value, '$[1]')
    ORDER BY e.upstream, e.downstream, e.grp
) AS e

-- name: edge_whole@sqlite
-- Every edge of these flows.
SELECT json_group_array(json_array({columns})) FROM (
    SELECT e.* FROM json_each(?1) AS wanted
    CROSS JOIN edge AS e INDEXED BY sqlite_autoindex_edge_1 ON e.flow = wanted.value
    ORDER BY e.upstream, e.downstream, e.grp
) AS e

-- name: group_upsert@sqlite
-- Groups, whole: only who holds the flow's revision writes them.
WITH new ({names}) AS (VALUES {rows})
INSERT OR FAIL INTO edge_group ({names}) SELECT * FROM new WHERE flow IS NOT NULL
ON CONFLICT (flow, downstream, name) DO UPDATE SET
    joins = excluded.joins, k = excluded.k, on_satisfied = excluded.on_satisfied,
    on_impossible = excluded.on_impossible, sealed = excluded.sealed, state = excluded.state,
    n = excluded.n, succeeded = excluded.succeeded, failed = excluded.failed,
    skipped = excluded.skipped, decided_ms = excluded.decided_ms,
    cancel_owed = excluded.cancel_owed, cancel_reason = excluded.cancel_reason,
    owed = excluded.owed

-- name: group_load@sqlite
-- The groups of these members of flows.
SELECT json_group_array(json_array({columns}))
FROM json_each(?1) AS wanted CROSS JOIN edge_group AS e
    ON e.flow = json_extract(wanted.value, '$[0]')
    AND e.downstream = json_extract(wanted.value, '$[1]')

-- name: member_page@sqlite
-- Members of a flow in these states, or in one that nobody knows, in the order of their ids.
SELECT json_group_array(id) FROM (
    SELECT id FROM execution
    WHERE flow = ?1 AND flow <> '' AND id > ?2
      AND (?3 IS NULL OR state IN (SELECT value FROM json_each(?3))
           OR state NOT IN (SELECT value FROM json_each(?5)))
    ORDER BY id LIMIT ?4
)

-- name: apply_outbox@postgres
-- The part of an apply that leaves lines for the dispatcher; one that is there is written anew.
, outbox AS (
    INSERT INTO {schema}.line ({line_columns})
    SELECT {line_values} FROM applied WHERE out_id IS NOT NULL
    ON CONFLICT (flow, at_ms, id) DO UPDATE SET
        about = excluded.about, failures = excluded.failures, next_try_ms = excluded.next_try_ms
)

-- name: flow_commit@postgres
-- Many changesets, each as a whole or not at all. Flows are locked first, in the order of their
-- ids, then executions in the order of theirs. Guards are judged by the locked rows; the numbers of
-- changesets with one that does not hold are refused, and everything is written but for them. A flow
-- or a member that somebody else writes meanwhile cannot be written twice: the statement fails.
{clock}, owner AS MATERIALIZED (
    SELECT f.id, f.rev FROM {schema}.flow AS f
    WHERE f.id = ANY (:owners::text[]) AND (SELECT fits FROM clock)
    ORDER BY f.id FOR UPDATE
){locks}, refused AS MATERIALIZED (
    SELECT which FROM generate_series(1, :total::bigint) AS which
    WHERE NOT (SELECT fits FROM clock)
    {refusals}
){writes}
SELECT c.now_ms, c.fits, ARRAY(SELECT DISTINCT which FROM refused) AS refused,
       (SELECT pg_notify(:channel::text, :notice::text) WHERE :notice::text <> ''
        AND (SELECT count(DISTINCT which) FROM refused) < :total::bigint) AS told
FROM clock AS c

-- name: moves_lock@postgres
-- The part of a commit that locks executions, after the flows. What is to be written is not carried
-- along: rows are copied at every step from here to the verdict.
, asked AS MATERIALIZED (
    {asked}
), locked AS MATERIALIZED (
    SELECT e.id, coalesce(
        CASE WHEN t.seen_rev IS NULL THEN {held} ELSE {seen} END, false
    ) AS holds
    FROM asked AS t JOIN {schema}.execution AS e ON e.id = t.given_id
    WHERE (SELECT count(*) FROM owner) >= 0 AND (SELECT fits FROM clock)
    ORDER BY e.id FOR UPDATE OF e
)

-- name: moves_asked@postgres
-- What is compared with executions, of those that are guarded alike.
SELECT t.which, t.given_id, {compared} FROM {given}

-- name: moves_refuse@postgres
-- Refused: an execution is not as it was seen. Mostly none is, which their number tells.
UNION ALL SELECT t.which FROM asked AS t
WHERE (SELECT count(*) FROM locked WHERE holds) < (SELECT count(*) FROM asked)
  AND t.given_id NOT IN (SELECT id FROM locked WHERE holds)

-- name: moves_write@postgres
-- The part of a commit that writes the same columns of many executions. They are picked out first:
-- a row that changed while it was waited for is joined again, and that must ask nothing else.
, good_{part} AS MATERIALIZED (
    SELECT t.* FROM {given} WHERE {kept}
), {part} AS (
    UPDATE {schema}.execution AS e SET {patch}rev = e.rev + 1
    FROM good_{part} AS g WHERE e.id = g.given_id
    RETURNING e.n, e.id, e.state, e.attempt, e.epoch, g.which, g.position, g.line_kind,
              g.line_detail{more_g}
){beside}

-- name: moves_tags@postgres
-- The part of a commit that sets tags; other keys stay.
, tagged_{part} AS (
    INSERT INTO {schema}.tag (n, key, value)
    SELECT a.n, t.key, t.value FROM {part} AS a, jsonb_each_text(a.tags::jsonb) AS t
    ON CONFLICT (n, key) DO UPDATE SET value = excluded.value
)

-- name: new_flows_refuse@postgres
-- Refused: a flow that is to be new is there.
UNION ALL SELECT t.which FROM {given} WHERE (t.id IN (SELECT id FROM owner)) IS TRUE

-- name: new_flows_write@postgres
-- The part of a commit that writes new flows.
, founded AS (
    INSERT INTO {schema}.flow ({columns}) SELECT {values} FROM {given} WHERE {kept} ORDER BY t.id
)

-- name: flows_refuse@postgres
-- Refused: a flow is not as it was seen, or not there.
UNION ALL SELECT t.which FROM {given} WHERE (t.id, t.rev) NOT IN (SELECT id, rev FROM owner)

-- name: present_refuse@postgres
-- Refused: a flow that has to be there, however it is, is not.
UNION ALL SELECT t.which FROM {given} WHERE t.id NOT IN (SELECT id FROM owner)

-- name: flows_write@postgres
-- The part of a commit that writes named columns of flows, and raises their revisions in any case.
, good_flows AS MATERIALIZED (
    SELECT t.id, t.patch::jsonb AS given FROM {given} WHERE {kept}
), raised AS (
    UPDATE {schema}.flow AS e SET {patch}rev = e.rev + 1
    FROM good_flows AS g WHERE e.id = g.id
)

-- name: members_refuse@postgres
-- Refused: a member that is to be new is there.
UNION ALL SELECT t.which FROM {given}
WHERE EXISTS (SELECT FROM {schema}.execution AS e WHERE e.id = t.id)

-- name: members_write@postgres
-- The part of a commit that writes new members and their lanes and tags.
, created AS (
    INSERT INTO {schema}.execution ({columns}) SELECT {values} FROM {given} WHERE {kept} ORDER BY t.id
    RETURNING n, id, lane, state, attempt, epoch
), laned AS (
    INSERT INTO {schema}.lane (name) SELECT DISTINCT lane FROM created ORDER BY lane
    ON CONFLICT (name) DO NOTHING
), labelled AS (
    INSERT INTO {schema}.tag (n, key, value)
    SELECT c.n, t.key, t.value FROM created AS c, jsonb_each_text(:labels::jsonb -> c.id) AS t
)

-- name: edges_write@postgres
-- The part of a commit that adds edges; one that is there stays as it is.
, drawn AS (
    INSERT INTO {schema}.edge ({columns}) SELECT {values} FROM {given} WHERE {kept}
    ON CONFLICT (downstream, grp, upstream) DO NOTHING
)

-- name: new_edges_write@postgres
-- Differs: all are of new flows.
, drawn AS (
    INSERT INTO {schema}.edge ({columns}) SELECT {values} FROM {given} WHERE {kept}
)

-- name: resolved_write@postgres
-- The part of a commit that says what became of edges.
, good_resolved AS MATERIALIZED (
    SELECT t.* FROM {given} WHERE {kept}
), resolved AS (
    UPDATE {schema}.edge AS e SET
        state = g.state, generation = g.generation, attempt = g.attempt,
        outcome = g.outcome, resolved_ms = g.resolved_ms
    FROM good_resolved AS g
    WHERE e.downstream = g.downstream AND e.grp = g.grp AND e.upstream = g.upstream
)

-- name: groups_write@postgres
-- The part of a commit that writes groups, whole: only who holds the flow's revision writes them.
, grouped AS (
    INSERT INTO {schema}.edge_group ({columns}) SELECT {values} FROM {given} WHERE {kept}
    ON CONFLICT (downstream, name) DO UPDATE SET
        joins = excluded.joins, k = excluded.k, on_satisfied = excluded.on_satisfied,
        on_impossible = excluded.on_impossible, sealed = excluded.sealed, state = excluded.state,
        n = excluded.n, succeeded = excluded.succeeded, failed = excluded.failed,
        skipped = excluded.skipped, decided_ms = excluded.decided_ms,
        cancel_owed = excluded.cancel_owed, cancel_reason = excluded.cancel_reason,
        owed = excluded.owed
)

-- name: new_groups_write@postgres
-- Differs: all are of new flows.
, grouped AS (
    INSERT INTO {schema}.edge_group ({columns}) SELECT {values} FROM {given} WHERE {kept}
)

-- name: lines_write@postgres
-- The part of a commit that writes lines; one that is there is written anew.
, lined AS (
    INSERT INTO {schema}.line ({columns}) SELECT {values} FROM {given} WHERE {kept}
    ON CONFLICT (flow, at_ms, id) DO UPDATE SET
        about = excluded.about, failures = excluded.failures, next_try_ms = excluded.next_try_ms
)

-- name: done_write@postgres
-- The part of a commit that removes lines. As a range they can only be found by their key: many lines
-- are of the same age.
, good_done AS MATERIALIZED (
    SELECT t.* FROM {given} WHERE {kept}
), removed AS (
    DELETE FROM {schema}.line AS e USING good_done AS g
    WHERE (e.flow, e.at_ms, e.id) >= (g.flow, g.at_ms, g.id)
      AND (e.flow, e.at_ms, e.id) <= (g.flow, g.at_ms, g.id)
)

-- name: commit_log@postgres
-- The part of a commit that appends to the log, in an order that a reader can follow.
, logged AS (
    INSERT INTO {schema}.log (n, id, at_ms, kind, state, attempt, epoch, detail)
    SELECT n, id, :now_ms::bigint, kind, state, attempt, epoch, detail::json
    FROM ({told}) AS x (stage, which, position, n, id, kind, state, attempt, epoch, detail)
    ORDER BY stage, which, position
)

-- name: members_log@postgres
-- What is told of new members.
SELECT 0, 0, n, n, id, 'submitted', state, attempt, epoch, '{{}}' FROM created

-- name: moves_log@postgres
-- What is told of executions that were changed.
SELECT 1, which, position, n, id, line_kind, state, attempt, epoch, line_detail FROM {part}
WHERE line_kind IS NOT NULL

-- name: notes_log@postgres
-- What is told of executions that were not.
SELECT 2, t.which, t.position, e.n, e.id, t.kind, e.state, e.attempt, e.epoch, t.detail
FROM {given} JOIN {schema}.execution AS e ON e.id = t.execution WHERE {kept}

-- name: notes_log_after@postgres
-- Differs: some of them were changed, and are told of as they are then.
SELECT 2, t.which, t.position, e.n, e.id, t.kind, coalesce(a.state, e.state),
       coalesce(a.attempt, e.attempt), coalesce(a.epoch, e.epoch), t.detail
FROM {given} JOIN {schema}.execution AS e ON e.id = t.execution
LEFT JOIN ({changed}) AS a ON a.id = t.execution WHERE {kept}

-- name: flow_find@postgres
-- Flows that fit, or are in a state that nobody knows, in the order of their ids.
SELECT json_agg(json_build_array({flow_columns}) ORDER BY e.id)::text AS flows FROM (
    SELECT * FROM {schema}.flow AS f
    WHERE f.id > :after::text AND f.is_open{unsettled}
      AND (:namespace::text IS NULL OR f.namespace = :namespace::text)
      AND (:name::text IS NULL OR f.name = :name::text)
      AND (:states::text[] IS NULL OR f.state = ANY (:states::text[])
           OR f.state NOT IN ('open', 'cancelled'))
    ORDER BY f.id LIMIT :limit::bigint
) AS e

-- name: flow_take@postgres
-- A lease of the dispatcher, not a change of what the flow says. A flow that changed after its
-- lines were looked at is left for the next turn: lines and revision must be of one moment. Flows
-- are locked one by one as they are found, and none beyond the limit.
{clock}, before AS MATERIALIZED (
    SELECT now_ms, fits, {entries} AS entries FROM clock
), peeked AS MATERIALIZED (
    {peeked}
), picked AS MATERIALIZED (
    SELECT f.id, c.turn FROM ({candidates}) AS c CROSS JOIN LATERAL (
        SELECT f.id FROM {schema}.flow AS f
        WHERE f.id = c.id AND f.rev = c.rev AND f.busy_until_ms <= :now_ms::bigint
          AND f.next_try_ms <= :now_ms::bigint AND f.parked = ''
        FOR UPDATE SKIP LOCKED
    ) AS f
    WHERE (SELECT fits FROM before) LIMIT :limit::bigint
), taken AS (
    UPDATE {schema}.flow AS f SET busy_until_ms = :until_ms::bigint
    FROM picked AS p WHERE f.id = p.id
    RETURNING p.turn, f.*
)
SELECT c.now_ms, c.fits, (SELECT count(*) FROM peeked) AS peeked,
       {entries} - c.entries AS entries,
       e.id, json_build_array({flow_columns})::text AS flow, x.lines
FROM before AS c LEFT JOIN taken AS e ON true
LEFT JOIN LATERAL (
    SELECT json_agg(json_build_array({line_columns}) ORDER BY l.at_ms, l.id)::text AS lines FROM (
        SELECT * FROM {schema}.line AS l
        WHERE l.flow >= e.id AND l.flow <= e.id AND l.next_try_ms <= :now_ms::bigint
        ORDER BY l.flow, l.at_ms, l.id LIMIT :lines::bigint
    ) AS l
) AS x ON true
ORDER BY e.turn, e.id

-- name: flow_next@postgres
-- When the next flow has something to do that has not now, or is free that is not: timers of flows,
-- flows and lines that were put back, and leases of flows that have something to do already.
WITH RECURSIVE owner (id) AS (
    SELECT '' COLLATE "C"
    UNION ALL
    SELECT n.flow FROM owner AS o CROSS JOIN LATERAL (
        SELECT l.flow FROM {schema}.line AS l WHERE l.flow > o.id ORDER BY l.flow LIMIT 1
    ) AS n
)
SELECT least(
    (SELECT f.due_ms FROM {schema}.flow AS f
     WHERE f.due_ms > :now_ms::bigint AND f.parked = '' ORDER BY f.due_ms LIMIT 1),
    (SELECT f.next_try_ms FROM {schema}.flow AS f
     WHERE f.next_try_ms > :now_ms::bigint AND f.next_try_ms > 0 AND f.parked = ''
     ORDER BY f.next_try_ms LIMIT 1),
    (SELECT l.next_try_ms FROM {schema}.line AS l
     WHERE l.next_try_ms > :now_ms::bigint AND l.next_try_ms > 0 ORDER BY l.next_try_ms LIMIT 1),
    (SELECT min(f.busy_until_ms) FROM {schema}.flow AS f
     WHERE f.due_ms <= :now_ms::bigint AND f.busy_until_ms > :now_ms::bigint AND f.parked = ''),
    (SELECT min(s.busy_until_ms) FROM owner AS o CROSS JOIN LATERAL (
        SELECT f.busy_until_ms FROM {schema}.flow AS f
        WHERE f.id = o.id AND f.busy_until_ms > :now_ms::bigint AND f.parked = '' OFFSET 0
     ) AS s)
) AS at_ms

-- name: flow_round@postgres
-- The part of a turn that looks for flows: those with a line whose time has come, and those whose
-- own timer has passed, in the order of their ids and round to the first. Each step jumps to the next
-- flow, however many lines the last one has, and no step is taken beyond the limit. The end of a
-- round is one that an index can stop at, behind which it would walk to its own end.
SELECT o.turn, s.id, s.rev FROM (
    WITH RECURSIVE late AS MATERIALIZED (
        SELECT f.id FROM {schema}.flow AS f WHERE f.due_ms <= :now_ms::bigint
    ), owner (id, turn) AS (
        SELECT :after::text COLLATE "C", 1
        UNION ALL
        SELECT coalesce(n.flow, ''), CASE WHEN n.flow IS NULL THEN o.turn + 1 ELSE o.turn END
        FROM owner AS o LEFT JOIN LATERAL (
            SELECT least(
                (SELECT l.flow FROM {schema}.line AS l
                 WHERE l.flow > o.id
                   AND l.flow <= CASE WHEN o.turn = 1 THEN chr(127) ELSE :after::text END
                 ORDER BY l.flow LIMIT 1),
                (SELECT min(f.id) FROM late AS f
                 WHERE f.id > o.id AND (o.turn = 1 OR f.id <= :after::text))
            ) AS flow OFFSET 0
        ) AS n ON true
        WHERE o.turn <= 2
    )
    SELECT id, turn FROM owner OFFSET 1
) AS o {of_owner}

-- name: flow_recent@postgres
-- Differs: only lines and timers from a time on, the oldest of them.
SELECT o.turn, s.id, s.rev FROM (
    SELECT CASE WHEN r.id > :after::text THEN 1 ELSE 2 END AS turn, r.id FROM (
        SELECT p.flow AS id FROM peeked AS p
        UNION
        SELECT f.id FROM {schema}.flow AS f
        WHERE f.due_ms >= :since_ms::bigint AND f.due_ms <= :now_ms::bigint
    ) AS r ORDER BY 1, 2
) AS o {of_owner}

-- name: peeked_lines@postgres
-- The part of a turn that looks at the oldest lines from a time on.
SELECT l.flow FROM {schema}.line AS l WHERE l.at_ms >= :since_ms::bigint
ORDER BY l.at_ms LIMIT :peek::bigint

-- name: of_owner@postgres
-- The part of a look for flows that keeps those which can be taken. Lines of a flow are asked for by
-- a range and in its order, here and elsewhere: a server that knows of one flow with nearly all lines
-- would look for those of any other among all lines by age.
CROSS JOIN LATERAL (
    SELECT s.id, s.rev FROM {schema}.flow AS s
    WHERE s.id = o.id AND s.busy_until_ms <= :now_ms::bigint
      AND s.next_try_ms <= :now_ms::bigint AND s.parked = ''
      AND (s.due_ms <= :now_ms::bigint OR (
          SELECT true FROM {schema}.line AS l
          WHERE l.flow >= s.id AND l.flow <= s.id AND l.next_try_ms <= :now_ms::bigint
          ORDER BY l.flow LIMIT 1
      ))
    OFFSET 0
) AS s

-- name: flow_named@postgres
-- Differs: only these flows.
SELECT w.turn, s.id, s.rev
FROM unnest(:only::text[]) WITH ORDINALITY AS w (id, turn) JOIN {schema}.flow AS s ON s.id = w.id
WHERE s.due_ms <= :now_ms::bigint OR (
    SELECT true FROM {schema}.line AS l
    WHERE l.flow >= s.id AND l.flow <= s.id AND l.next_try_ms <= :now_ms::bigint
    ORDER BY l.flow LIMIT 1
)

-- name: flow_graph@postgres
-- Parts of flows, for several sights at once and all of one moment: one row for each sight and kind
-- of record.
WITH edges AS MATERIALIZED (
    {edges}
), followers AS MATERIALIZED (
    SELECT DISTINCT e.which, e.downstream AS id FROM edges AS e WHERE (
        (e.which, e.upstream) IN (
            SELECT * FROM unnest(:leaving_which::bigint[], :leaving_id::text[])
        )
    ) IS TRUE
), pages AS MATERIALIZED (
    {pages}
)
SELECT 'flow' AS kind, w.which, json_agg(json_build_array({flow_columns}))::text AS found
FROM unnest(:flows::text[]) WITH ORDINALITY AS w (id, which)
JOIN {schema}.flow AS e ON e.id = w.id GROUP BY w.which
{kinds}

-- name: edges_none@postgres
-- No edges are asked for.
SELECT NULL::bigint AS which, e.* FROM {schema}.edge AS e WHERE false

-- name: edges_leaving@postgres
-- Pending edges that leave these executions, so many of each sight.
SELECT e.which, {edge_columns} FROM (
    SELECT w.which, w.most, x.*,
           row_number() OVER (
               PARTITION BY w.which ORDER BY x.upstream, x.downstream, x.grp
           ) AS place
    FROM unnest(:leaving_which::bigint[], :leaving_id::text[], :leaving_most::bigint[])
        AS w (which, id, most)
    CROSS JOIN LATERAL (
        SELECT * FROM {schema}.edge AS e
        WHERE e.upstream = w.id AND e.state NOT IN ('satisfied', 'impossible')
        ORDER BY e.upstream, e.downstream, e.grp LIMIT w.most
    ) AS x
) AS e WHERE e.place <= e.most

-- name: edges_entering@postgres
-- Every edge that enters these executions.
SELECT w.which, {edge_columns}
FROM unnest(:entering_which::bigint[], :entering_id::text[]) AS w (which, id)
JOIN {schema}.edge AS e ON e.downstream = w.id

-- name: edges_whole@postgres
-- Every edge of these flows, by way of their members.
SELECT w.which, {edge_columns}
FROM unnest(:whole_which::bigint[], :whole_flow::text[]) AS w (which, flow)
CROSS JOIN LATERAL (
    SELECT x.id FROM {schema}.execution AS x WHERE x.flow = w.flow AND x.flow <> '' OFFSET 0
) AS x
JOIN {schema}.edge AS e ON e.downstream = x.id

-- name: pages_none@postgres
-- No members are asked for.
SELECT NULL::bigint AS which, NULL::text AS id WHERE false

-- name: pages_found@postgres
-- Pages of members in these states, in the order of their ids.
SELECT w.which, x.id
FROM unnest(
    :page_which::bigint[], :page_flow::text[], :page_after::text[], :page_states::text[],
    :page_limit::bigint[]
) AS w (which, flow, after, states, most)
CROSS JOIN LATERAL (
    SELECT x.id FROM {schema}.execution AS x
    WHERE x.flow = w.flow AND x.flow <> '' AND x.id > w.after
      AND (w.states = '' OR x.state = ANY (string_to_array(w.states, ' ')))
    ORDER BY x.flow, x.id LIMIT w.most
) AS x

-- name: graph_edges@postgres
-- The edges that were found; one may be there twice.
UNION ALL
SELECT 'edge', e.which, json_agg(json_build_array({edge_columns}))::text FROM edges AS e
GROUP BY e.which

-- name: graph_groups@postgres
-- The groups of who waits for these edges, and of those asked for.
UNION ALL
SELECT 'group', w.which, json_agg(json_build_array({group_columns}))::text FROM (
    SELECT which, id FROM followers
    UNION SELECT * FROM unnest(:entering_which::bigint[], :entering_id::text[])
    UNION SELECT * FROM unnest(:group_which::bigint[], :group_id::text[])
) AS w (which, id) JOIN {schema}.edge_group AS e ON e.downstream = w.id GROUP BY w.which

-- name: graph_heads@postgres
-- The heads of these executions, of who waits, of the pages, and of the ends that are asked for.
UNION ALL
SELECT 'execution', w.which, json_agg(json_build_array({heads}))::text FROM (
    SELECT which, id FROM followers
    UNION SELECT which, id FROM pages
    UNION SELECT * FROM unnest(:head_which::bigint[], :head_id::text[])
    UNION SELECT e.which, e.upstream FROM edges AS e WHERE (
        (e.which, e.downstream) IN (
            SELECT * FROM unnest(:end_which::bigint[], :end_id::text[])
        )
    ) IS TRUE
) AS w (which, id) JOIN {schema}.execution AS e ON e.id = w.id GROUP BY w.which

-- name: graph_pages@postgres
-- The members of the pages.
UNION ALL
SELECT 'member', p.which, json_agg(p.id ORDER BY p.id)::text FROM pages AS p GROUP BY p.which

-- name: graph_lines@postgres
-- The oldest lines of these flows whose time has come, or all where no time and number are given.
UNION ALL
SELECT 'line', w.which, json_agg(json_build_array({line_columns}) ORDER BY l.at_ms, l.id)::text
FROM unnest(
    :lined_which::bigint[], :lined_flow::text[], :lined_due_ms::bigint[], :lined_most::bigint[]
) AS w (which, flow, due_ms, most)
CROSS JOIN LATERAL (
    SELECT * FROM {schema}.line AS x
    WHERE x.flow >= w.flow AND x.flow <= w.flow
      AND (w.due_ms IS NULL OR x.next_try_ms <= w.due_ms)
    ORDER BY x.flow, x.at_ms, x.id LIMIT w.most
) AS l GROUP BY w.which
