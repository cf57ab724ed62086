-- ?1 how many. Messages that no route wanted are due now. An INSERT that always finds its row, see retry.sql.
INSERT INTO counterfoil_outbox (seq, available_at)
SELECT t.seq, (SELECT ms FROM counterfoil_now)
FROM counterfoil_timed t
CROSS JOIN counterfoil_outbox o ON o.seq = t.seq
WHERE t.queue_name = ''
  AND t.available_at > (SELECT ms FROM counterfoil_now)
  AND o.state = 'scheduled'
  AND o.code = 'NO_ROUTE'
LIMIT ?1
ON CONFLICT (seq) DO UPDATE SET available_at = excluded.available_at
