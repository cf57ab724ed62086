-- State, status, headers, body, keep and retry in microseconds, digest, fence.
UPDATE counterfoil_guard
SET state = ?, status = ?, headers = ?, body = ?, expires_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND,
    retry_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, lease_until = NULL, updated_at = UTC_TIMESTAMP(6)
WHERE digest = ? AND fence = ? AND state IN ('processing', 'uncertain')
