-- Age in microseconds, limit. What belongs to a message that still waits somewhere stays.
SELECT v.n
FROM counterfoil_events v
WHERE v.at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND
  AND NOT EXISTS (SELECT 1 FROM counterfoil_outbox o WHERE o.seq = v.seq)
  AND NOT EXISTS (SELECT 1 FROM counterfoil_parked p WHERE p.seq = v.seq)
ORDER BY v.at
LIMIT ?
