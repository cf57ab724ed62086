-- $1 numbers, $2 delays in milliseconds, $3 attempts, $4 codes, $5 errors, $6 ids, $7 relay,
-- $8 ids as they stand in the rows.
WITH r AS MATERIALIZED (
    SELECT *
    FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::text[], $5::text[], $6::text[], $8::text[])
        AS u (seq, delay, attempts, code, error, id, written)
), changed AS (
    UPDATE counterfoil_outbox o
    SET state = 'retrying', attempts = r.attempts, crashes = 0, code = r.code, error = r.error,
        available_at = clock_timestamp() + r.delay * interval '1 millisecond'
    FROM r
    WHERE o.seq = r.seq AND o.id IS NOT DISTINCT FROM r.written
    RETURNING r.seq, r.id, r.attempts, r.code, r.error
)
INSERT INTO counterfoil_events (seq, id, kind, attempt, code, detail, actor)
SELECT seq, id, 'retry', attempts, code, error, $7 FROM changed
