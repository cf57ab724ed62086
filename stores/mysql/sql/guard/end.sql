-- State, status, headers, body, keep and retry in microseconds, digest, fence, when it was last changed in microseconds, if that matters.
UPDATE counterfoil_guard
SET state = ?, status = ?, headers = ?, body = ?, expires_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND,
    retry_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, lease_until = NULL, updated_at = UTC_TIMESTAMP(6)
WHERE digest = ? AND fence = ? AND state IN ('processing', 'uncertain')
  AND updated_at = COALESCE(TIMESTAMP'1970-01-01 00:00:00' + INTERVAL ? MICROSECOND, updated_at)
