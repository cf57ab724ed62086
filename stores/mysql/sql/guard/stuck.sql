-- Idle in microseconds, time (in microseconds, zero for the beginning) and digest of the record after which it goes on,
-- limit.
SELECT TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6)) AS now, fence,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', created_at) AS created_at,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', updated_at) AS updated_at,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', expires_at) AS expires_at,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', lease_until) AS lease_until,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', retry_at) AS retry_at,
       attempts, status, state, scope, business_type, name, fingerprint, headers, body
FROM counterfoil_guard
WHERE open_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND
  AND (state = 'uncertain' OR lease_until <= UTC_TIMESTAMP(6))
  AND (open_at, digest) > (TIMESTAMP'1970-01-01 00:00:00' + INTERVAL ? MICROSECOND, ?)
ORDER BY open_at, digest
LIMIT ?
