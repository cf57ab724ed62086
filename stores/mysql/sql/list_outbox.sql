-- Twice each: queue, state, aggregate id, code; then after, limit. Absent filters match everything.
SELECT seq, COALESCE(id, '') AS id, COALESCE(queue, '') AS queue, aggregate_type, aggregate_id, version,
       COALESCE(event_type, '') AS event_type, COALESCE(state, 'new') AS state,
       GREATEST(COALESCE(attempts, 0), 0) AS attempts,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', available_at) AS available_at,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at) AS created_at,
       CAST(NULL AS SIGNED) AS ended_at, code, error
FROM counterfoil_outbox
WHERE (? IS NULL OR queue_key = ?)
  AND (? IS NULL OR CAST(COALESCE(state, 'new') AS BINARY) = ?)
  AND (? IS NULL OR CAST(aggregate_id AS BINARY) = ?)
  AND (? IS NULL OR CAST(code AS BINARY) = ?)
  AND seq > ?
ORDER BY seq
LIMIT ?
