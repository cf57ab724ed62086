-- ?1 digest, ?2 fence, ?3 lease in milliseconds, ?4 when it was last changed, if that matters.
WITH clock (ms) AS (SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
UPDATE counterfoil_guard
SET lease_until = (SELECT ms FROM clock) + ?3, updated_at = (SELECT ms FROM clock)
WHERE digest = ?1 AND fence = ?2 AND state = 'processing' AND updated_at = coalesce(?4, updated_at)
