-- As list_outbox.sql. Without a state: what waits for a decision.
SELECT seq, id, queue, aggregate_type, aggregate_id, version, event_type, state, attempts, NULL AS available_ms,
       created_at, parked_at, code, error
FROM counterfoil_parked
WHERE (?1 IS NULL OR queue = ?1)
  AND (?2 = 'all' OR state = coalesce(?2, 'pending'))
  AND (?3 IS NULL OR CAST(aggregate_id AS TEXT) = ?3)
  AND (?4 IS NULL OR code = ?4)
  AND seq > ?5
ORDER BY seq
LIMIT ?6
