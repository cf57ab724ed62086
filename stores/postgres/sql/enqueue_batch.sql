-- A whole batch in one statement: $1 to $10 as in enqueue_many.sql, $11 scopes, $12 keys, both NULL without a key.
-- Keys first, in their own order, so that two batches cannot wait for each other in a circle. A message is stored when
-- it has no key, or is the first in the batch with a key that is new. Tells of each whether it was stored, and else the
-- id under its key: absent when somebody used the key a moment ago, which this statement's snapshot does not show.
WITH m AS MATERIALIZED (
    SELECT *
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::text[], $8::text[],
                $9::bytea[], $10::timestamptz[], $11::text[], $12::text[])
        WITH ORDINALITY AS u (id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin,
                              available_at, scope, key, n)
), first AS MATERIALIZED (
    SELECT DISTINCT ON (scope, key) scope, key, id, n FROM m WHERE key IS NOT NULL ORDER BY scope, key, n
), noted AS (
    INSERT INTO counterfoil_ledger (scope, key, id)
    SELECT scope, key, id FROM first ORDER BY scope, key
    ON CONFLICT DO NOTHING
    RETURNING scope, key, id
), ours AS (
    SELECT m.n, f.n AS first, noted.id
    FROM m
    LEFT JOIN first f ON f.scope = m.scope AND f.key = m.key
    LEFT JOIN noted ON noted.scope = m.scope AND noted.key = m.key
    WHERE m.key IS NULL OR noted.id IS NOT NULL
), stored AS (
    INSERT INTO counterfoil_outbox
        (id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin, available_at)
    SELECT m.id, m.queue, m.aggregate_type, m.aggregate_id, m.version, m.event_type, m.headers, m.payload, m.payload_bin,
           m.available_at
    FROM m
    JOIN ours USING (n)
    WHERE m.key IS NULL OR ours.first = m.n
    ORDER BY m.n
)
SELECT m.key IS NULL OR coalesce(ours.first = m.n, false) AS stored, coalesce(ours.id, l.id) AS first
FROM m
LEFT JOIN ours USING (n)
LEFT JOIN counterfoil_ledger l ON l.scope = m.scope AND l.key = m.key
ORDER BY m.n
