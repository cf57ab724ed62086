-- ?1 numbers (a JSON array). An INSERT that always finds its row, see retry.sql.
-- A due time that was written as a text becomes a number, so that the index orders it.
INSERT INTO counterfoil_outbox (seq, state, available_at)
SELECT value, 'scheduled', coalesce(o.available_ms, o.available_at)
FROM json_each(?1)
CROSS JOIN counterfoil_pending o ON o.seq = value
WHERE true
ON CONFLICT (seq) DO UPDATE SET state = excluded.state, available_at = excluded.available_at
