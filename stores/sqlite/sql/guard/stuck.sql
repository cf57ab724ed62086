-- ?1 idle in milliseconds, ?2 limit.
WITH clock (ms) AS (SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
SELECT clock.ms AS now, fence, created_at, updated_at, expires_at, lease_until, retry_at, attempts, status, state, scope,
       business_type, key, fingerprint, headers, body
FROM clock CROSS JOIN counterfoil_guard INDEXED BY counterfoil_guard_open
WHERE state IN ('processing', 'uncertain')
  AND updated_at <= clock.ms - ?1
  AND (state = 'uncertain' OR lease_until <= clock.ms)
ORDER BY updated_at, digest
LIMIT ?2
