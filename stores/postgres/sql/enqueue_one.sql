INSERT INTO counterfoil_outbox
    (id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin, available_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
