-- $1 numbers, $2 ids, $3 attempts, $4 codes, $5 errors, $6 hold, $7 confirm, $8 relay,
-- $9 ids as they stand in the rows. Answers the places of the rows that were there, counted from one.
WITH r AS MATERIALIZED (
    SELECT *
    FROM unnest($1::bigint[], $2::text[], $3::int[], $4::text[], $5::text[], $6::bool[], $7::bool[], $9::text[])
        WITH ORDINALITY AS u (seq, id, attempts, code, error, hold, confirm, written, n)
), gone AS (
    DELETE FROM counterfoil_outbox o
    USING r
    WHERE o.seq = r.seq AND o.id IS NOT DISTINCT FROM r.written
    RETURNING r.n, o.seq, o.queue, o.shard, o.aggregate_type, o.aggregate_id, o.version, o.event_type, o.headers,
              o.payload, o.payload_bin, o.created_at
), parked AS (
    INSERT INTO counterfoil_parked AS p
        (seq, id, queue, shard, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin,
         created_at, attempts, code, error, hold, confirm)
    SELECT gone.seq, r.id, coalesce(gone.queue, ''), gone.shard, gone.aggregate_type, gone.aggregate_id, gone.version,
           gone.event_type, gone.headers, gone.payload, gone.payload_bin, coalesce(gone.created_at, now()),
           r.attempts, r.code, r.error, r.hold, r.confirm
    FROM gone
    JOIN r USING (n)
    ON CONFLICT (seq) DO UPDATE
    SET state = 'pending', attempts = excluded.attempts, code = excluded.code, error = excluded.error,
        hold = excluded.hold, confirm = excluded.confirm, parked_at = now(), updated_at = now()
), told AS (
    INSERT INTO counterfoil_events (seq, id, kind, attempt, code, detail, actor)
    SELECT r.seq, r.id, 'parked', r.attempts, r.code, r.error, $8
    FROM r
    JOIN gone USING (n)
)
SELECT n FROM gone
