-- ?1 idle in milliseconds, ?2 limit, ?3 and ?4 the time and the digest of the record after which it goes on.
WITH clock (ms) AS (SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
SELECT clock.ms AS now, fence, created_at, updated_at, expires_at, lease_until, retry_at, attempts, status, state, scope,
       business_type, key, fingerprint, headers, body
FROM clock CROSS JOIN counterfoil_guard INDEXED BY counterfoil_guard_open
WHERE state IN ('processing', 'uncertain')
  AND updated_at <= clock.ms - ?1
  AND (state = 'uncertain' OR lease_until <= clock.ms)
  AND (?3 IS NULL OR (updated_at, digest) > (?3, ?4))
ORDER BY updated_at, digest
LIMIT ?2
