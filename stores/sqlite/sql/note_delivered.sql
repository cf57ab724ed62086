-- ?1 numbers of redriven rows (a JSON array), ?2 relay, ?3 delivered or rerouted. Only a delivery is an attempt.
INSERT INTO counterfoil_events (seq, id, kind, attempt, actor)
SELECT o.seq, coalesce(CAST(o.id AS TEXT), ''), ?3,
       CASE ?3 WHEN 'delivered' THEN max(coalesce(CAST(o.attempts AS INTEGER), 0), 0) + 1 END, ?2
FROM json_each(?1)
CROSS JOIN counterfoil_outbox o NOT INDEXED ON o.seq = value
