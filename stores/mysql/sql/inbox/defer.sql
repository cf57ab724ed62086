INSERT INTO counterfoil_outbox
    (id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin, state, available_at,
     attempts, code, error)
VALUES
