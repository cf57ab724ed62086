-- ?1 numbers of redriven rows (a JSON array), ?2 relay.
INSERT INTO counterfoil_events (seq, id, kind, attempt, actor)
SELECT o.seq, coalesce(CAST(o.id AS TEXT), ''), 'delivered', max(coalesce(CAST(o.attempts AS INTEGER), 0), 0) + 1, ?2
FROM json_each(?1)
CROSS JOIN counterfoil_outbox o NOT INDEXED ON o.seq = value
