-- ?1 digest, ?2 fence, ?3 state, ?4 status, ?5 headers, ?6 body, ?7 keep and ?8 retry in milliseconds, ?9 when it was last changed, if that matters.
WITH clock (ms) AS (SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
UPDATE counterfoil_guard
SET state = ?3, status = ?4, headers = ?5, body = ?6, expires_at = (SELECT ms FROM clock) + ?7,
    retry_at = (SELECT ms FROM clock) + ?8, lease_until = NULL, updated_at = (SELECT ms FROM clock)
WHERE digest = ?1 AND fence = ?2 AND state IN ('processing', 'uncertain') AND updated_at = coalesce(?9, updated_at)
