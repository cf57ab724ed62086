-- As swap.sql, in the place of the claim, whose number stays.
UPDATE counterfoil_guard
SET created_at = CASE WHEN ? = 1 THEN UTC_TIMESTAMP(6) ELSE created_at END,
    updated_at = UTC_TIMESTAMP(6),
    expires_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND,
    lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND,
    retry_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND,
    attempts = ?, status = ?, state = ?, scope = ?, business_type = ?, name = ?, fingerprint = ?, headers = ?, body = ?
WHERE digest = ? AND fingerprint = REPEAT(X'00', 32)
