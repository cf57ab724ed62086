-- ?1 numbers (a JSON array). An INSERT that always finds its row, see retry.sql.
INSERT INTO counterfoil_outbox (seq, state)
SELECT value, 'held' FROM json_each(?1) WHERE value IN (SELECT seq FROM counterfoil_outbox)
ON CONFLICT (seq) DO UPDATE SET state = excluded.state
