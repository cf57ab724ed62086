-- ?1 name, ?2 lease in milliseconds, ?3 the machine's clock in microseconds.
WITH clock (ms) AS (SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
INSERT INTO counterfoil_locks (name, fence, lease_until)
SELECT ?1, max(?3, ms * 1000), ms + ?2
FROM clock
WHERE true
ON CONFLICT (name) DO UPDATE
SET fence = max(counterfoil_locks.fence + 1, excluded.fence), lease_until = excluded.lease_until
WHERE counterfoil_locks.lease_until <= (SELECT ms FROM clock)
RETURNING fence
