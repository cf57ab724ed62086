-- $1 numbers, $2 delays in milliseconds, $3 attempts, $4 codes, $5 errors, $6 ids, $7 relay.
WITH r AS MATERIALIZED (
    SELECT *
    FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::text[], $5::text[], $6::text[])
        AS u (seq, delay, attempts, code, error, id)
), changed AS (
    UPDATE counterfoil_outbox o
    SET state = 'retrying', attempts = r.attempts, crashes = 0, code = r.code, error = r.error,
        available_at = clock_timestamp() + r.delay * interval '1 millisecond'
    FROM r
    WHERE o.seq = r.seq
    RETURNING o.seq
)
INSERT INTO counterfoil_events (seq, id, kind, attempt, code, detail, actor)
SELECT r.seq, r.id, 'retry', r.attempts, r.code, r.error, $7
FROM r
JOIN changed USING (seq)
