-- $1 digest.
SELECT now() AS now, fence, created_at, updated_at, expires_at, lease_until, retry_at, attempts, status, state, scope,
       business_type, key, fingerprint, headers, body
FROM counterfoil_guard
WHERE digest = $1
