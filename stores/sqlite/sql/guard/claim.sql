-- ?1 digest, ?2 scope, ?3 business type, ?4 key, ?5 the machine's clock in microseconds.
-- Not seen from outside: what commits is the finished record. Only when the business commits behind our back the
-- claim stays, and is uncertain, because its lease is over from the beginning.
WITH clock (ms) AS (SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
INSERT INTO counterfoil_guard (digest, fence, created_at, updated_at, expires_at, lease_until, attempts, state, scope,
                               business_type, key, fingerprint)
SELECT ?1, max(?5, ms * 1000), ms, ms, ms, ms, 1, 'processing', ?2, ?3, ?4, zeroblob(32)
FROM clock
WHERE true
ON CONFLICT (digest) DO NOTHING
