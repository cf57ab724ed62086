-- $1 queue, $2 state, $3 aggregate id, $4 code, $5 after, $6 limit. Absent filters match everything.
SELECT seq, coalesce(id, '') AS id, coalesce(queue, '') AS queue, aggregate_type, aggregate_id, version,
       coalesce(event_type, '') AS event_type, coalesce(state, 'new') AS state,
       greatest(coalesce(attempts, 0), 0) AS attempts,
       CASE WHEN available_at IS NOT NULL
            THEN least(greatest(available_at, '1970-01-01'), '9999-12-31') END AS available_at,
       least(greatest(coalesce(created_at, now()), '1970-01-01'), '9999-12-31') AS created_at,
       NULL::timestamptz AS ended_at, code, error
FROM counterfoil_outbox
WHERE ($1::text IS NULL OR coalesce(queue, '') = $1)
  AND ($2::text IS NULL OR coalesce(state, 'new') = $2)
  AND ($3::text IS NULL OR aggregate_id = $3)
  AND ($4::text IS NULL OR code = $4)
  AND seq > $5
ORDER BY seq
LIMIT $6
