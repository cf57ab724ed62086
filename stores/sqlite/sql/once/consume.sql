-- ?1 digest, ?2 owner.
WITH clock (ms) AS (SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
DELETE FROM counterfoil_tokens WHERE digest = ?1 AND owner = ?2 AND expires_at > (SELECT ms FROM clock)
