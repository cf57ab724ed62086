-- ?1 rows (a JSON array of [number, id, attempts, code, error, delay in milliseconds]).
-- An INSERT that always finds its row. An UPDATE ... FROM may be planned as a scan of the outbox for each of them.
INSERT INTO counterfoil_outbox (seq, state, attempts, code, error, available_at)
SELECT json_extract(value, '$[0]'), 'retrying', json_extract(value, '$[2]'), json_extract(value, '$[3]'),
       json_extract(value, '$[4]'), (SELECT ms FROM counterfoil_now) + json_extract(value, '$[5]')
FROM json_each(?1)
WHERE json_extract(value, '$[0]') IN (SELECT seq FROM counterfoil_outbox)
ON CONFLICT (seq) DO UPDATE
SET state = excluded.state, attempts = excluded.attempts, code = excluded.code, error = excluded.error,
    available_at = excluded.available_at, crashes = 0
