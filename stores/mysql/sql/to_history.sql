-- Copies rows that are locked and about to be deleted: attempts to add, state, detail, [[number, shard], ...].
INSERT INTO counterfoil_history
    (seq, id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin, created_at,
     attempts, state, detail)
SELECT o.seq, o.id, COALESCE(o.queue, ''), o.aggregate_type, o.aggregate_id, o.version, o.event_type, o.headers,
       o.payload, o.payload_bin, o.created_at, LEAST(GREATEST(COALESCE(o.attempts, 0), 0) + ?, 2147483647), ?, ?
FROM JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$[0]')) j
STRAIGHT_JOIN counterfoil_outbox o FORCE INDEX (PRIMARY) ON o.seq = j.seq
