-- $1 idle in microseconds, $2 limit, $3 and $4 the time and the digest of the record after which it goes on.
SELECT now() AS now, fence, created_at, updated_at, expires_at, lease_until, retry_at, attempts, status, state, scope,
       business_type, key, fingerprint, headers, body
FROM counterfoil_guard
WHERE state IN ('processing', 'uncertain')
  AND updated_at <= now() - $1 * interval '1 microsecond'
  AND (state = 'uncertain' OR lease_until <= now())
  AND ($3::timestamptz IS NULL OR (updated_at, digest) > ($3, $4::bytea))
ORDER BY updated_at, digest
LIMIT $2
