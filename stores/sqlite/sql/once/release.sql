-- ?1 name, ?2 fence.
WITH clock (ms) AS (SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
UPDATE counterfoil_locks
SET lease_until = (SELECT ms FROM clock)
WHERE name = ?1 AND fence = ?2 AND lease_until > (SELECT ms FROM clock)
