-- As list_outbox.sql. Without a state: what waits for a decision; `all` means every state.
SELECT seq, id, queue, aggregate_type, aggregate_id, version, coalesce(event_type, '') AS event_type, state,
       attempts, NULL::timestamptz AS available_at,
       least(greatest(created_at, '1970-01-01'), '9999-12-31') AS created_at,
       CASE WHEN state = 'delivered' THEN updated_at ELSE parked_at END AS ended_at, code, error
FROM counterfoil_parked
WHERE ($1::text IS NULL OR queue = $1)
  AND ($2 = 'all' OR state = coalesce($2, 'pending'))
  AND ($3::text IS NULL OR aggregate_id = $3)
  AND ($4::text IS NULL OR code = $4)
  AND seq > $5
ORDER BY seq
LIMIT $6
