-- Business type, scope, name, state: each twice; limit. An owner whose lease is over counts as uncertain.
SELECT TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6)) AS now, fence,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', created_at) AS created_at,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', updated_at) AS updated_at,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', expires_at) AS expires_at,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', lease_until) AS lease_until,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', retry_at) AS retry_at,
       attempts, status, state, scope, business_type, name, fingerprint, headers, body
FROM counterfoil_guard
WHERE (? IS NULL OR business_type = ?)
  AND (? IS NULL OR scope = ?)
  AND (? IS NULL OR name = ?)
  AND (? IS NULL
       OR CAST(CASE WHEN state = 'processing' AND lease_until <= UTC_TIMESTAMP(6) THEN 'uncertain' ELSE state END
               AS BINARY) = ?)
ORDER BY updated_at DESC, digest
LIMIT ?
