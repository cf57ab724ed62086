-- ?1 digest, ?2 owner, ?3 time to live in milliseconds.
WITH clock (ms) AS (SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
INSERT INTO counterfoil_tokens (digest, owner, expires_at) SELECT ?1, ?2, ms + ?3 FROM clock
