-- ?1 name, ?2 fence, ?3 lease in milliseconds.
WITH clock (ms) AS (SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
UPDATE counterfoil_locks
SET lease_until = (SELECT ms FROM clock) + ?3
WHERE name = ?1 AND fence = ?2 AND lease_until > (SELECT ms FROM clock)
