-- $1 business type, $2 scope, $3 key, $4 state, $5 limit. An owner whose lease is over counts as uncertain.
SELECT now() AS now, fence, created_at, updated_at, expires_at, lease_until, retry_at, attempts, status, state, scope,
       business_type, key, fingerprint, headers, body
FROM counterfoil_guard
WHERE ($1::text IS NULL OR business_type = $1)
  AND ($2::text IS NULL OR scope = $2)
  AND ($3::text IS NULL OR key = $3)
  AND ($4::text IS NULL
       OR CASE WHEN state = 'processing' AND lease_until <= now() THEN 'uncertain' ELSE state END = $4)
ORDER BY updated_at DESC, digest
LIMIT $5
