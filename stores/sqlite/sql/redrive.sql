-- Back into the queue under the same id and number, so that its place in the aggregate stays. The first of a lane is
-- due at once; what comes after another one of its lane, chosen with it or there already, is held behind that.
-- ?1 numbers (a JSON array).
INSERT INTO counterfoil_outbox
    (seq, id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin, created_at,
     available_at, state, attempts, code, error, redriven)
SELECT p.seq, p.id, p.queue, p.aggregate_type, p.aggregate_id, p.version, p.event_type, p.headers, p.payload,
       p.payload_bin, p.created_at, (SELECT ms FROM counterfoil_now),
       CASE
           WHEN EXISTS (
                    SELECT 1 FROM json_each(?1)
                    CROSS JOIN counterfoil_parked e NOT INDEXED ON e.seq = value
                    WHERE e.seq < p.seq
                      AND e.queue = p.queue
                      AND CAST(e.aggregate_id AS TEXT) = CAST(p.aggregate_id AS TEXT)
                      AND CAST(coalesce(e.aggregate_type, '') AS TEXT) = CAST(coalesce(p.aggregate_type, '') AS TEXT))
               OR EXISTS (
                    SELECT 1 FROM counterfoil_lanes l
                    WHERE l.queue_name = p.queue
                      AND l.lane_id = CAST(p.aggregate_id AS TEXT)
                      AND l.lane_kind = CAST(coalesce(p.aggregate_type, '') AS TEXT)
                      AND l.seq < p.seq)
               THEN 'held'
           ELSE 'retrying'
       END,
       0, p.code, p.error, 1
FROM json_each(?1)
CROSS JOIN counterfoil_parked p NOT INDEXED ON p.seq = value
ORDER BY p.seq
