-- The key first: $11 scope, $12 key. No row of either when the key was used before.
WITH first AS (
    INSERT INTO counterfoil_ledger (scope, key, id)
    VALUES ($11, $12, $1)
    ON CONFLICT DO NOTHING
    RETURNING id
)
INSERT INTO counterfoil_outbox
    (id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin, available_at)
SELECT first.id, $2, $3, $4, $5::bigint, $6, $7, $8, $9::bytea, $10::timestamptz
FROM first
