-- ?10 state, ?11 delay in milliseconds.
INSERT INTO counterfoil_outbox
    (id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin, state, available_at,
     attempts, code, error)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, (SELECT ms FROM counterfoil_now) + ?11, ?12, ?13, ?14)
