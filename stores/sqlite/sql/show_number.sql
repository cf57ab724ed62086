-- As show.sql, by number (?1): one look by the key each, whatever statistics say.
SELECT seq, id, queue, aggregate_type, aggregate_id, version, event_type, state, attempts, available_ms, created_ms,
       ended_at, code, error, place, payload, bin, headers
FROM (
    SELECT 'outbox' AS place, o.seq, o.id, o.queue_name AS queue, o.aggregate_type, o.aggregate_id, o.version,
           o.event_type, coalesce(o.state, 'new') AS state, o.attempts, o.available_ms, o.created_ms, NULL AS ended_at,
           o.code, o.error, o.payload, length(CAST(o.payload_bin AS BLOB)) AS bin, o.headers
    FROM counterfoil_pending o WHERE o.seq = ?1
    UNION ALL
    SELECT 'parked', seq, id, queue, aggregate_type, aggregate_id, version, event_type, state, attempts, NULL,
           created_at, CASE state WHEN 'delivered' THEN updated_at ELSE parked_at END, code, error, payload,
           length(CAST(payload_bin AS BLOB)), headers
    FROM counterfoil_parked WHERE seq = ?1
    UNION ALL
    SELECT 'history', seq, id, queue, aggregate_type, aggregate_id, version, event_type, state, attempts, NULL,
           coalesce(created_at, ended_at), ended_at, NULL, detail, payload, length(CAST(payload_bin AS BLOB)), headers
    FROM counterfoil_history WHERE seq = ?1
)
ORDER BY CASE WHEN place = 'parked' AND state IN ('pending', 'ignored') THEN 0
              WHEN place = 'outbox' THEN 1 WHEN place = 'history' THEN 2 ELSE 3 END
LIMIT 1
