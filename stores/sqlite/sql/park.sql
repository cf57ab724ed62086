-- ?1 rows (a JSON array of [number, id, attempts, code, error, hold, confirm]).
INSERT INTO counterfoil_parked
    (seq, id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin, created_at,
     attempts, code, error, hold, confirm, parked_at, updated_at)
SELECT o.seq, r.id, o.queue_name, o.aggregate_type, o.aggregate_id, o.version, o.event_type, o.headers, o.payload,
       o.payload_bin, coalesce(o.created_ms, now.ms), r.attempts, r.code, r.error, r.hold, r.confirm, now.ms, now.ms
FROM (
    SELECT json_extract(value, '$[0]') AS seq, json_extract(value, '$[1]') AS id,
           json_extract(value, '$[2]') AS attempts, json_extract(value, '$[3]') AS code,
           json_extract(value, '$[4]') AS error, json_extract(value, '$[5]') AS hold,
           json_extract(value, '$[6]') AS confirm
    FROM json_each(?1)
) r
CROSS JOIN counterfoil_pending o ON o.seq = r.seq
CROSS JOIN counterfoil_now now
WHERE true
ON CONFLICT (seq) DO UPDATE
SET state = 'pending', attempts = excluded.attempts, code = excluded.code, error = excluded.error,
    hold = excluded.hold, confirm = excluded.confirm, parked_at = excluded.parked_at, updated_at = excluded.updated_at
