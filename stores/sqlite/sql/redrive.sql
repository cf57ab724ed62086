-- Back into the queue under the same id and number, so that its place in the aggregate stays.
-- ?1 numbers (a JSON array).
INSERT INTO counterfoil_outbox
    (seq, id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin, created_at,
     available_at, state, attempts, code, error, redriven)
SELECT seq, id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin, created_at,
       (SELECT ms FROM counterfoil_now), 'retrying', 0, code, error, 1
FROM counterfoil_parked
WHERE seq IN (SELECT value FROM json_each(?1))
ORDER BY seq
