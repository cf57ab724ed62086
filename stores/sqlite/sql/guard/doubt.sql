-- ?1 digest, ?2 fence, ?3 when it was last changed, if that matters.
WITH clock (ms) AS (SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
UPDATE counterfoil_guard
SET state = 'uncertain', lease_until = NULL, updated_at = (SELECT ms FROM clock)
WHERE digest = ?1 AND fence = ?2 AND state IN ('processing', 'uncertain') AND updated_at = coalesce(?3, updated_at)
