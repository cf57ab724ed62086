-- ?1 numbers (a JSON array): into the history, before they are deleted.
INSERT OR REPLACE INTO counterfoil_history
    (seq, id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin, created_at,
     attempts, state, ended_at)
SELECT seq, counterfoil_pending.id, queue_name, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin, created_ms,
       max(coalesce(CAST(attempts AS INTEGER), 0), 0) + 1, 'sent', (SELECT ms FROM counterfoil_now)
FROM json_each(?1)
CROSS JOIN counterfoil_pending ON seq = value
