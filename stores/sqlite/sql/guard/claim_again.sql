-- ?1 digest, ?2 the number that is expected, ?3 the machine's clock in microseconds. As claim.sql.
WITH clock (ms) AS (SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
UPDATE counterfoil_guard
SET fence = max(fence + 1, ?3, (SELECT ms FROM clock) * 1000), updated_at = (SELECT ms FROM clock),
    lease_until = (SELECT ms FROM clock), state = 'processing', fingerprint = zeroblob(32)
WHERE digest = ?1 AND fence = ?2
