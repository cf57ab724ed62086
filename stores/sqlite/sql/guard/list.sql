-- ?1 business type, ?2 scope, ?3 key, ?4 state, ?5 limit. An owner whose lease is over counts as uncertain.
WITH clock (ms) AS (SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
SELECT clock.ms AS now, fence, created_at, updated_at, expires_at, lease_until, retry_at, attempts, status, state, scope,
       business_type, key, fingerprint, headers, body
FROM counterfoil_guard, clock
WHERE (?1 IS NULL OR business_type = ?1)
  AND (?2 IS NULL OR scope = ?2)
  AND (?3 IS NULL OR key = ?3)
  AND (?4 IS NULL
       OR CASE WHEN state = 'processing' AND lease_until <= clock.ms THEN 'uncertain' ELSE state END = ?4)
ORDER BY updated_at DESC, digest
LIMIT ?5
