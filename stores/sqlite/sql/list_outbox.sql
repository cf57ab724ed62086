-- ?1 queue, ?2 state, ?3 aggregate id, ?4 code, ?5 after, ?6 limit. Absent filters match everything.
SELECT seq, id, queue_name, aggregate_type, aggregate_id, version, event_type, coalesce(state, 'new') AS state, attempts,
       available_ms, created_ms, NULL AS ended_at, code, error
FROM counterfoil_pending
WHERE (?1 IS NULL OR queue_name = ?1)
  AND (?2 IS NULL OR coalesce(state, 'new') = ?2)
  AND (?3 IS NULL OR lane_id = ?3)
  AND (?4 IS NULL OR code = ?4)
  AND seq > ?5
ORDER BY seq
LIMIT ?6
