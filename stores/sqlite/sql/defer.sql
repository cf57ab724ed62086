-- ?1 rows (a JSON array of [number, delay in milliseconds]). An INSERT that always finds its row, see retry.sql.
INSERT INTO counterfoil_outbox (seq, state, code, available_at)
SELECT json_extract(value, '$[0]'), 'scheduled', 'NO_ROUTE',
       (SELECT ms FROM counterfoil_now) + json_extract(value, '$[1]')
FROM json_each(?1)
WHERE json_extract(value, '$[0]') IN (SELECT seq FROM counterfoil_outbox)
ON CONFLICT (seq) DO UPDATE SET state = excluded.state, code = excluded.code, available_at = excluded.available_at
