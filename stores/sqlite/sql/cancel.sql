-- ?1 numbers (a JSON array), ?2 reason, ?3 operator. The rows are deleted afterwards.
INSERT OR REPLACE INTO counterfoil_history
    (seq, id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin, created_at,
     attempts, state, detail, ended_at)
SELECT seq, counterfoil_pending.id, queue_name, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin, created_ms,
       max(coalesce(CAST(attempts AS INTEGER), 0), 0), 'cancelled', ?2 || ' (by ' || ?3 || ')',
       (SELECT ms FROM counterfoil_now)
FROM json_each(?1)
CROSS JOIN counterfoil_pending ON seq = value
