-- Attempt, keep, lease and retry in microseconds, attempt, status, state, scope, business type, name, fingerprint,
-- headers, body, digest, the number that is expected.
UPDATE counterfoil_guard
SET fence = LAST_INSERT_ID(GREATEST(fence + 1, TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6)))),
    created_at = CASE WHEN ? = 1 THEN UTC_TIMESTAMP(6) ELSE created_at END,
    updated_at = UTC_TIMESTAMP(6),
    expires_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND,
    lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND,
    retry_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND,
    attempts = ?, status = ?, state = ?, scope = ?, business_type = ?, name = ?, fingerprint = ?, headers = ?, body = ?
WHERE digest = ? AND fence = ?
