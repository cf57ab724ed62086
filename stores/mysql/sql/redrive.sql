-- Back into the queue under the same id and number, so that its place in the aggregate stays:
-- [[number, 1 when it comes after another one of its lane, ...], ...].
-- The first of a lane is due at once; what comes after one that is there already is held behind that too.
INSERT INTO counterfoil_outbox
    (seq, id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin, created_at,
     available_at, state, attempts, code, error, redriven)
SELECT p.seq, p.id, p.queue, p.aggregate_type, p.aggregate_id, p.version, p.event_type, p.headers, p.payload,
       p.payload_bin, p.created_at, UTC_TIMESTAMP(6),
       CASE
           WHEN j.later = 1
               OR EXISTS (
                    SELECT 1 FROM counterfoil_outbox l
                    WHERE l.queue_key = p.queue_key AND l.blocks = p.lane AND l.seq < p.seq)
               OR EXISTS (
                    SELECT 1 FROM counterfoil_parked e
                    WHERE e.queue_key = p.queue_key AND e.blocks = p.lane AND e.state = 'pending' AND e.seq < p.seq)
               THEN 'held'
           ELSE 'retrying'
       END,
       0, p.code, p.error, 1
FROM JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$[0]', later TINYINT PATH '$[1]')) j
STRAIGHT_JOIN counterfoil_parked p FORCE INDEX (PRIMARY) ON p.seq = j.seq
ORDER BY p.seq
