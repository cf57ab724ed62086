-- Back into the queue under the same id and number, so that its place in the aggregate stays: [[number, ...], ...].
INSERT INTO counterfoil_outbox
    (seq, id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin, created_at,
     available_at, state, attempts, code, error, redriven)
SELECT p.seq, p.id, p.queue, p.aggregate_type, p.aggregate_id, p.version, p.event_type, p.headers, p.payload,
       p.payload_bin, p.created_at, UTC_TIMESTAMP(6), 'retrying', 0, p.code, p.error, 1
FROM JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$[0]')) j
STRAIGHT_JOIN counterfoil_parked p FORCE INDEX (PRIMARY) ON p.seq = j.seq
ORDER BY p.seq
