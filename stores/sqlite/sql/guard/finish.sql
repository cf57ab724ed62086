-- As insert.sql without ?14, in the place of the claim.
WITH clock (ms) AS (SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
UPDATE counterfoil_guard
SET expires_at = (SELECT ms FROM clock) + ?2,
    lease_until = (SELECT ms FROM clock) + ?3,
    retry_at = (SELECT ms FROM clock) + ?4,
    attempts = ?5, status = ?6, state = ?7, scope = ?8, business_type = ?9, key = ?10, fingerprint = ?11, headers = ?12,
    body = ?13, updated_at = (SELECT ms FROM clock),
    created_at = CASE WHEN ?5 = 1 THEN (SELECT ms FROM clock) ELSE created_at END
WHERE digest = ?1 AND fingerprint = zeroblob(32)
