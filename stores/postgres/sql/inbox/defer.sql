-- $1 consumer, $2 keys, $3 ids, $4 queue, $5 aggregate types, $6 aggregate ids, $7 versions, $8 event types, $9 headers,
-- $10 payloads, $11 opaque payloads, $12 held, $13 delays in milliseconds, $14 attempts, $15 codes, $16 errors.
WITH u AS MATERIALIZED (
    SELECT *
    FROM unnest($2::text[], $3::text[], $5::text[], $6::text[], $7::bigint[], $8::text[], $9::text[], $10::text[],
                $11::bytea[], $12::boolean[], $13::bigint[], $14::int[], $15::text[], $16::text[])
        WITH ORDINALITY AS u (key, id, kind, aggregate, version, event_type, headers, payload, payload_bin, held, delay,
                              attempts, code, error, n)
), noted AS (
    -- As in finish.sql: a row that was not there is from the end of time, and is not counted.
    INSERT INTO counterfoil_inbox AS i (consumer, key, processed_at)
    SELECT $1, u.key, 'infinity' FROM u
    ON CONFLICT (consumer, key) DO UPDATE SET state = 'waiting'
    RETURNING i.key, i.processed_at
)
INSERT INTO counterfoil_outbox
    (id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin, state, available_at,
     attempts, code, error)
SELECT u.id, $4, u.kind, u.aggregate, u.version, u.event_type, u.headers, u.payload, u.payload_bin,
       CASE WHEN u.held THEN 'held' ELSE 'retrying' END, clock_timestamp() + u.delay * interval '1 millisecond',
       u.attempts, u.code, u.error
FROM u
JOIN noted ON noted.key = u.key AND noted.processed_at < 'infinity'
ORDER BY u.n
