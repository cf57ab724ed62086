-- Back into the queue under the same id and number, so that its place in the aggregate stays.
-- $1 numbers, $2 operator.
WITH chosen AS (
    UPDATE counterfoil_parked
    SET state = 'redriven', redrives = redrives + 1, updated_at = now()
    WHERE seq = ANY ($1) AND state = 'pending'
    RETURNING *
), back AS (
    INSERT INTO counterfoil_outbox
        (seq, id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin, created_at,
         available_at, state, attempts, code, error, redriven)
    SELECT seq, id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin,
           created_at, now(), 'retrying', 0, code, error, true
    FROM chosen
    ORDER BY seq
), told AS (
    INSERT INTO counterfoil_events (seq, id, kind, actor)
    SELECT seq, id, 'redriven', $2 FROM chosen
)
SELECT seq FROM chosen ORDER BY seq
