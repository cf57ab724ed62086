-- ?1 digest, ?2 keep, ?3 lease and ?4 retry in milliseconds, ?5 attempt, ?6 status, ?7 state, ?8 scope,
-- ?9 business type, ?10 key, ?11 fingerprint, ?12 headers, ?13 body, ?14 the machine's clock in microseconds.
-- The number comes from the clock, so that it goes on growing when a record was forgotten.
WITH clock (ms) AS (SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
INSERT INTO counterfoil_guard
    (digest, fence, created_at, updated_at, expires_at, lease_until, retry_at, attempts, status, state, scope,
     business_type, key, fingerprint, headers, body)
SELECT ?1, max(?14, ms * 1000), ms, ms, ms + ?2, ms + ?3, ms + ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13
FROM clock
WHERE true
ON CONFLICT (digest) DO NOTHING
RETURNING fence
