-- name: document_revs@sqlite
-- What the guards of puts compare, and whether the words are other ones.
SELECT json_group_array(json_array(
    d.kind, d.namespace, d.name, iif(typeof(d.rev) = 'integer', d.rev, -1),
    iif(typeof(d.words) = 'text', d.words, '')
))
FROM json_each(?1) AS w CROSS JOIN document AS d
WHERE d.kind = json_extract(w.value, '$[0]') AND d.namespace = json_extract(w.value, '$[1]') AND d.name = json_extract(w.value, '$[2]')

-- name: document_load@sqlite
-- Documents by their names.
SELECT json_group_array(json_array(
    d.kind, d.namespace, d.name, d.rev, d.due_ms, d.words,
    iif(typeof(d.body) = 'blob', hex(d.body), 0.5)
))
FROM json_each(?1) AS w CROSS JOIN document AS d
WHERE d.kind = json_extract(w.value, '$[0]') AND d.namespace = json_extract(w.value, '$[1]') AND d.name = json_extract(w.value, '$[2]')

-- name: document_put@sqlite
-- Documents as they are from now on.
WITH new (kind, namespace, name, rev, due_ms, words, body) AS (VALUES {rows})
INSERT OR FAIL INTO document (kind, namespace, name, rev, due_ms, words, body)
SELECT * FROM new WHERE name IS NOT NULL
ON CONFLICT (kind, namespace, name) DO UPDATE SET
    rev = excluded.rev, due_ms = excluded.due_ms, words = excluded.words, body = excluded.body

-- name: document_delete@sqlite
-- Documents that are there no longer.
WITH gone (kind, namespace, name) AS (VALUES {rows})
DELETE FROM document WHERE (kind, namespace, name) IN (
    SELECT d.kind, d.namespace, d.name FROM gone CROSS JOIN document AS d
        ON d.kind = gone.kind AND d.namespace = gone.namespace AND d.name = gone.name
)

-- name: document_word_delete@sqlite
-- All words of these documents.
WITH gone (kind, namespace, name) AS (VALUES {rows})
DELETE FROM document_word WHERE (kind, namespace, name) IN (
    SELECT d.kind, d.namespace, d.name FROM gone CROSS JOIN document_word AS d
        ON d.kind = gone.kind AND d.namespace = gone.namespace AND d.name = gone.name
)

-- name: document_word_insert@sqlite
-- Words of documents that have no others.
WITH new (kind, namespace, name, word) AS (VALUES {rows})
INSERT OR FAIL INTO document_word (kind, namespace, name, word) SELECT * FROM new WHERE name IS NOT NULL

-- name: document_list@sqlite
-- Documents of a kind and namespace, in the order of their names.
SELECT json_group_array(json_array(
    d.kind, d.namespace, d.name, d.rev, d.due_ms, d.words,
    iif(typeof(d.body) = 'blob', hex(d.body), 0.5)
)) FROM (
    SELECT * FROM document WHERE kind = ?1 AND namespace = ?2 AND name > ?3 ORDER BY name LIMIT ?4
) AS d

-- name: document_list_word@sqlite
-- Differs: those that have a word.
SELECT json_group_array(json_array(
    d.kind, d.namespace, d.name, d.rev, d.due_ms, d.words,
    iif(typeof(d.body) = 'blob', hex(d.body), 0.5)
)) FROM (
    SELECT x.* FROM document_word AS w INDEXED BY document_word_names CROSS JOIN document AS x
    WHERE w.kind = ?1 AND w.namespace = ?2 AND w.word = ?5 AND w.name > ?3
      AND x.kind = w.kind AND x.namespace = w.namespace AND x.name = w.name
    ORDER BY w.name LIMIT ?4
) AS d

-- name: document_due@sqlite
-- Documents of a kind whose time has come, soonest first.
SELECT json_group_array(json_array(
    d.kind, d.namespace, d.name, d.rev, d.due_ms, d.words,
    iif(typeof(d.body) = 'blob', hex(d.body), 0.5)
)) FROM (
    SELECT * FROM document INDEXED BY document_due
    WHERE kind = ?1 AND due_ms <= ?2 ORDER BY due_ms, namespace, name LIMIT ?3
) AS d

-- name: document_next_due@sqlite
-- When the time of the next one comes; what is no time sorts behind all of them.
SELECT min((
    SELECT iif(typeof(min(x.due_ms)) = 'integer', min(x.due_ms), NULL)
    FROM document AS x INDEXED BY document_due WHERE x.kind = k.value AND x.due_ms > ?2
)) FROM json_each(?1) AS k

-- name: document_put@postgres
-- Create, write or remove documents. Rows are locked in the order of their names, so that two batches
-- can never deadlock; revisions are compared with the rows as they were when locked, and those are
-- what a refusal shows. Of the words only those are touched that are new or gone.
{clock}, asked AS MATERIALIZED (
    SELECT t.*, ARRAY(SELECT json_array_elements_text(t.words_json::json)) AS words FROM (
        SELECT unnest(:kinds::text[]) AS kind, unnest(:namespaces::text[]) AS namespace,
               unnest(:names::text[]) AS name, unnest(:seen::bigint[]) AS seen,
               unnest(:revs::bigint[]) AS rev, unnest(:dues_ms::bigint[]) AS due_ms,
               unnest(:words::text[]) AS words_json, unnest(:bodies::bytea[]) AS body,
               generate_subscripts(:names::text[], 1) AS position
    ) AS t WHERE (SELECT fits FROM clock)
), locked AS MATERIALIZED (
    SELECT d.kind, d.namespace, d.name, d.rev, d.due_ms, d.words, d.body, a.position,
           d.rev = a.seen AS holds
    FROM asked AS a JOIN {schema}.document AS d
        ON d.kind = a.kind AND d.namespace = a.namespace AND d.name = a.name
    ORDER BY d.kind, d.namespace, d.name FOR UPDATE OF d
), changed AS (
    UPDATE {schema}.document AS d SET rev = a.rev, due_ms = a.due_ms, words = a.words, body = a.body
    FROM locked AS l JOIN asked AS a ON a.position = l.position AND a.body IS NOT NULL
    WHERE l.holds AND d.kind = l.kind AND d.namespace = l.namespace AND d.name = l.name
    RETURNING d.kind, d.namespace, d.name, a.words, l.words AS old_words, a.position
), removed AS (
    DELETE FROM {schema}.document AS d USING locked AS l JOIN asked AS a
        ON a.position = l.position AND a.body IS NULL
    WHERE l.holds AND d.kind = l.kind AND d.namespace = l.namespace AND d.name = l.name
    RETURNING d.kind, d.namespace, d.name, '{{}}'::text[] AS words, l.words AS old_words, a.position
), created AS (
    INSERT INTO {schema}.document (kind, namespace, name, rev, due_ms, words, body)
    SELECT a.kind, a.namespace, a.name, a.rev, a.due_ms, a.words, a.body FROM asked AS a
    WHERE a.seen = 0 AND a.body IS NOT NULL
      AND NOT EXISTS (SELECT FROM locked AS l WHERE l.position = a.position)
    ORDER BY a.kind, a.namespace, a.name
    ON CONFLICT (kind, namespace, name) DO NOTHING
    RETURNING kind, namespace, name, words
), written AS (
    SELECT * FROM changed UNION ALL SELECT * FROM removed UNION ALL
    SELECT c.kind, c.namespace, c.name, c.words, '{{}}'::text[], a.position
    FROM created AS c JOIN asked AS a USING (kind, namespace, name)
), unworded AS (
    DELETE FROM {schema}.document_word AS w USING written AS n
    WHERE w.kind = n.kind AND w.namespace = n.namespace AND w.name = n.name
      AND w.word = ANY (n.old_words) AND w.word <> ALL (n.words) AND n.words <> n.old_words
), worded AS (
    INSERT INTO {schema}.document_word (kind, namespace, name, word)
    SELECT n.kind, n.namespace, n.name, x.word FROM written AS n, unnest(n.words) AS x (word)
    WHERE x.word <> ALL (n.old_words) ON CONFLICT DO NOTHING
)
SELECT c.now_ms, c.fits, {notify}, a.position, w.position IS NOT NULL AS is_written,
       a.kind, a.namespace, a.name, l.rev, l.due_ms, l.words,
       CASE WHEN w.position IS NULL THEN l.body END AS body
FROM clock AS c LEFT JOIN asked AS a ON true LEFT JOIN written AS w ON w.position = a.position
LEFT JOIN locked AS l ON l.position = a.position
ORDER BY a.position

-- name: document_load@postgres
-- Documents by their names.
SELECT w.position, d.kind, d.namespace, d.name, d.rev, d.due_ms, d.words, d.body
FROM (
    SELECT unnest(:kinds::text[]) AS kind, unnest(:namespaces::text[]) AS namespace,
           unnest(:names::text[]) AS name, generate_subscripts(:names::text[], 1) AS position
) AS w JOIN {schema}.document AS d
    ON d.kind = w.kind AND d.namespace = w.namespace AND d.name = w.name
ORDER BY w.position

-- name: document_list@postgres
-- Documents of a kind and namespace, in the order of their names.
SELECT kind, namespace, name, rev, due_ms, words, body FROM {schema}.document
WHERE kind = :kind::text AND namespace = :namespace::text AND name > :after::text
ORDER BY kind, namespace, name LIMIT :limit::bigint

-- name: document_list_word@postgres
-- Differs: those that have a word.
SELECT d.kind, d.namespace, d.name, d.rev, d.due_ms, d.words, d.body
FROM {schema}.document_word AS w JOIN {schema}.document AS d
    ON d.kind = w.kind AND d.namespace = w.namespace AND d.name = w.name
WHERE w.kind = :kind::text AND w.namespace = :namespace::text AND w.word = :word::text
  AND w.name > :after::text
ORDER BY w.kind, w.namespace, w.word, w.name LIMIT :limit::bigint
