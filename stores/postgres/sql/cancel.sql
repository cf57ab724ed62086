-- $1 the spellings of an id, $2 reason, $3 operator, $4 the number that the id spells.
WITH gone AS (
    DELETE FROM counterfoil_outbox WHERE left(id, 64) = ANY ($1) OR seq = $4 RETURNING *
), kept AS (
    INSERT INTO counterfoil_history
        (seq, id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin,
         created_at, attempts, state, detail)
    SELECT seq, id, coalesce(queue, ''), aggregate_type, aggregate_id, version, event_type, headers, payload,
           payload_bin, created_at, greatest(coalesce(attempts, 0), 0), 'cancelled', $2 || ' (by ' || $3 || ')'
    FROM gone
), ignored AS (
    UPDATE counterfoil_parked p SET state = 'ignored', updated_at = now()
    FROM gone WHERE p.seq = gone.seq AND p.state = 'redriven'
), told AS (
    INSERT INTO counterfoil_events (seq, id, kind, detail, actor)
    SELECT seq, coalesce(id, ''), 'cancelled', $2, $3 FROM gone
)
SELECT count(*) FROM gone
