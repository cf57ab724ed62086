-- As list_outbox.sql.
SELECT seq, id, queue, aggregate_type, aggregate_id, version, COALESCE(event_type, '') AS event_type, state, attempts,
       CAST(NULL AS SIGNED) AS available_at, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at) AS created_at,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', IF(state = 'delivered', updated_at, parked_at)) AS ended_at, code, error
FROM counterfoil_parked
WHERE (? IS NULL OR queue_key = ?)
  AND (? IS NULL OR CAST(state AS BINARY) = ?)
  AND (? IS NULL OR CAST(aggregate_id AS BINARY) = ?)
  AND (? IS NULL OR CAST(code AS BINARY) = ?)
  AND seq > ?
ORDER BY seq
LIMIT ?
