-- name: part_fits@sqlite
-- Every condition that is set holds. A row in a state that nobody knows is in every one of them, and
-- members of a flow that is not open yet are not there.
(?3 IS NULL OR namespace = ?3)
      AND (?4 IS NULL OR lane = ?4)
      AND (?5 IS NULL OR kind = ?5)
      AND (?6 IS NULL OR state IN (SELECT value FROM json_each(?6))
           OR state NOT IN (SELECT value FROM json_each(?9)))
      AND (?10 IS NULL OR created_ms >= ?10)
      AND (flow = '' OR NOT EXISTS (SELECT 1 FROM flow AS f WHERE f.id = x.flow AND f.is_open = 0))
      AND NOT EXISTS (
          SELECT 1 FROM json_each(?7) AS wanted
          WHERE NOT EXISTS (
              SELECT 1 FROM tag AS t
              WHERE t.n = x.n AND t.key = wanted.key AND t.value = wanted.value
          )
      )

-- name: execution_find@sqlite
-- Heads that fit, in order of their ids, of a stretch of ids.
SELECT json_group_array(json_array({columns})) FROM (
    SELECT * FROM execution AS x
    WHERE id > ?1 AND id <= ?2 AND {part_fits}
    ORDER BY id LIMIT ?8
) AS e

-- name: execution_count@sqlite
-- How many heads of a stretch of ids fit.
SELECT count(*) FROM execution AS x WHERE id > ?1 AND id <= ?2 AND {part_fits}

-- name: execution_find_flow@sqlite
-- Members of a flow that fit, in order of their ids.
SELECT json_group_array(json_array({columns})) FROM (
    SELECT * FROM execution AS x INDEXED BY execution_flow
    WHERE flow = ?11 AND flow <> '' AND id > ?1 AND id <= ?2 AND {part_fits}
    ORDER BY id LIMIT ?8
) AS e

-- name: execution_count_flow@sqlite
-- How many members of a flow fit.
SELECT count(*) FROM execution AS x INDEXED BY execution_flow
WHERE flow = ?11 AND flow <> '' AND id > ?1 AND id <= ?2 AND {part_fits}

-- name: execution_find_among@sqlite
-- Heads that fit, of those with these ids.
SELECT json_group_array(json_array({columns})) FROM (
    SELECT * FROM execution AS x
    WHERE id IN (SELECT value FROM json_each(?11)) AND {part_fits}
) AS e

-- name: execution_count_among@sqlite
-- How many of those with these ids fit.
SELECT count(*) FROM execution AS x
WHERE id IN (SELECT value FROM json_each(?11)) AND {part_fits}

-- name: execution_stretch@sqlite
-- The last id of a stretch that has so many.
SELECT id FROM execution WHERE id > ?1 AND id < ?2 ORDER BY id LIMIT 1 OFFSET ?3

-- name: execution_open_ids@sqlite
-- Ids of what is ready in a namespace or has a timer, at most so many of each: all that waits for a
-- worker, is held by one, or is delayed.
SELECT json_group_array(id) FROM (
    SELECT id FROM (
        SELECT id FROM execution INDEXED BY execution_ready
        WHERE namespace = ?1 AND state IN ('waiting', 'orphaned', 'revoked') LIMIT ?2
    )
    UNION ALL
    SELECT id FROM (
        SELECT id FROM execution INDEXED BY execution_due WHERE due_ms IS NOT NULL LIMIT ?2
    )
)

-- name: tag_ids@sqlite
-- Ids of what has a tag, at most so many.
SELECT json_group_array(e.id) FROM (
    SELECT n FROM tag INDEXED BY tag_value WHERE key = ?1 AND value = ?2 LIMIT ?3
) AS tagged CROSS JOIN execution AS e ON e.n = tagged.n

-- name: queue_list@sqlite
-- What is ready on the next routes of a namespace: of each route and priority how many, up to a
-- number, and the oldest. Goes from the first row of one to that of the next by the index.
WITH RECURSIVE first (n) AS (
    SELECT (
        SELECT y.n FROM execution AS y INDEXED BY execution_ready
        WHERE y.namespace = ?1 AND y.route > ?2 AND y.state IN ('waiting', 'orphaned', 'revoked')
        ORDER BY y.route, y.priority DESC, y.created_ms, y.id LIMIT 1
    )
    UNION ALL
    SELECT coalesce((
        SELECT y.n FROM execution AS y INDEXED BY execution_ready
        WHERE y.namespace = ?1 AND y.route = x.route AND y.priority < x.priority
          AND y.state IN ('waiting', 'orphaned', 'revoked')
        ORDER BY y.priority DESC, y.created_ms, y.id LIMIT 1
    ), (
        SELECT y.n FROM execution AS y INDEXED BY execution_ready
        WHERE y.namespace = ?1 AND y.route > x.route
          AND y.state IN ('waiting', 'orphaned', 'revoked')
        ORDER BY y.route, y.priority DESC, y.created_ms, y.id LIMIT 1
    ))
    FROM first CROSS JOIN execution AS x ON x.n = first.n
    LIMIT ?3
)
SELECT json_group_array(json_array(e.route, (
    SELECT count(*) FROM (
        SELECT 1 FROM execution AS z INDEXED BY execution_ready
        WHERE z.namespace = ?1 AND z.route = e.route AND z.priority = e.priority
          AND z.state IN ('waiting', 'orphaned', 'revoked') LIMIT ?4
    )
), e.created_ms)) FROM first CROSS JOIN execution AS e ON e.n = first.n

-- name: part_fits@postgres
-- Every condition that is set holds. A row in a state that nobody knows is in every one of them, and
-- members of a flow that is not open yet are not there.
(:namespace::text IS NULL OR e.namespace = :namespace::text)
  AND (:lane::text IS NULL OR e.lane = :lane::text)
  AND (:kind::text IS NULL OR e.kind = :kind::text)
  AND (:states::text[] IS NULL OR e.state = ANY (:states::text[])
       OR e.state <> ALL (:known::text[]))
  AND (:since_ms::bigint IS NULL OR e.created_ms >= :since_ms::bigint)
  AND (e.flow = '' OR coalesce(
      (SELECT f.is_open FROM {schema}.flow AS f WHERE f.id = e.flow), true
  ))
  AND NOT EXISTS (
      SELECT FROM unnest(:tag_keys::text[], :tag_values::text[]) AS wanted (key, value)
      WHERE wanted.value IS DISTINCT FROM (
          SELECT t.value FROM {schema}.tag AS t WHERE t.n = e.n AND t.key = wanted.key
      )
  )

-- name: execution_find@postgres
-- Heads that fit, in order of their ids, of a stretch of ids.
SELECT {heads} FROM {schema}.execution AS e
WHERE e.id > :after::text AND e.id <= :last::text AND {part_fits}
ORDER BY e.id LIMIT :limit::bigint

-- name: execution_count@postgres
-- How many heads of a stretch of ids fit.
SELECT count(*) AS n FROM {schema}.execution AS e
WHERE e.id > :after::text AND e.id <= :last::text AND {part_fits}

-- name: execution_find_flow@postgres
-- Members of a flow that fit, in order of their ids.
SELECT {heads} FROM {schema}.execution AS e
WHERE e.flow = :flow::text AND e.flow <> '' AND e.id > :after::text AND e.id <= :last::text
  AND {part_fits}
ORDER BY e.id LIMIT :limit::bigint

-- name: execution_count_flow@postgres
-- How many members of a flow fit.
SELECT count(*) AS n FROM {schema}.execution AS e
WHERE e.flow = :flow::text AND e.flow <> '' AND e.id > :after::text AND e.id <= :last::text
  AND {part_fits}

-- name: execution_find_among@postgres
-- Heads that fit, of those with these ids.
SELECT {heads} FROM {schema}.execution AS e
WHERE e.id = ANY (:ids::text[]) AND {part_fits}

-- name: execution_count_among@postgres
-- How many of those with these ids fit.
SELECT count(*) AS n FROM {schema}.execution AS e
WHERE e.id = ANY (:ids::text[]) AND {part_fits}

-- name: execution_stretch@postgres
-- The last id of a stretch that has so many.
SELECT e.id FROM {schema}.execution AS e WHERE e.id > :after::text AND e.id < :before::text
ORDER BY e.id OFFSET :size::bigint LIMIT 1

-- name: execution_open_ids@postgres
-- Ids of what is ready in a namespace or has a timer, at most so many of each: all that waits for a
-- worker, is held by one, or is delayed.
(
    SELECT e.id FROM {schema}.execution AS e
    WHERE e.namespace = :namespace::text AND e.state IN ('waiting', 'orphaned', 'revoked')
    LIMIT :limit::bigint
)
UNION ALL
(
    SELECT e.id FROM {schema}.execution AS e WHERE e.due_ms > 0 LIMIT :limit::bigint
)

-- name: tag_ids@postgres
-- Ids of what has a tag, at most so many. Executions are not indexed by their number; the first line
-- of the log about one is, and names it.
SELECT l.id FROM (
    SELECT t.n FROM {schema}.tag AS t
    WHERE t.key = :key::text AND t.value = :value::text LIMIT :limit::bigint
) AS tagged
CROSS JOIN LATERAL (
    SELECT g.id FROM {schema}.log AS g WHERE g.n = tagged.n ORDER BY g.seq LIMIT 1
) AS l

-- name: queue_list@postgres
-- What is ready on the next routes of a namespace: of each route and priority how many, up to a
-- number, and the oldest. Goes from the first row of one to that of the next by the index.
WITH RECURSIVE first AS (
    (
        SELECT y.route, y.priority, y.created_ms FROM {schema}.execution AS y
        WHERE y.namespace = :namespace::text AND y.route > :after::text
          AND y.state IN ('waiting', 'orphaned', 'revoked')
        ORDER BY y.route, y.priority DESC, y.created_ms, y.id LIMIT 1
    )
    UNION ALL
    SELECT z.route, z.priority, z.created_ms FROM first AS x CROSS JOIN LATERAL (
        (
            SELECT 0 AS rank, y.route, y.priority, y.created_ms FROM {schema}.execution AS y
            WHERE y.namespace = :namespace::text AND y.route = x.route
              AND y.priority < x.priority AND y.state IN ('waiting', 'orphaned', 'revoked')
            ORDER BY y.priority DESC, y.created_ms, y.id LIMIT 1
        )
        UNION ALL
        (
            SELECT 1 AS rank, y.route, y.priority, y.created_ms FROM {schema}.execution AS y
            WHERE y.namespace = :namespace::text AND y.route > x.route
              AND y.state IN ('waiting', 'orphaned', 'revoked')
            ORDER BY y.route, y.priority DESC, y.created_ms, y.id LIMIT 1
        )
        ORDER BY rank LIMIT 1
    ) AS z
), next AS MATERIALIZED (SELECT * FROM first LIMIT :limit::bigint)
SELECT x.route, x.created_ms, (
    SELECT count(*) FROM (
        SELECT FROM {schema}.execution AS z
        WHERE z.namespace = :namespace::text AND z.route = x.route AND z.priority = x.priority
          AND z.state IN ('waiting', 'orphaned', 'revoked') LIMIT :depth::bigint
    ) AS counted
) AS ready FROM next AS x
