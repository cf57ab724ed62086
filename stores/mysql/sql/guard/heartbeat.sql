-- Lease in microseconds, digest, fence, when it was last changed in microseconds, if that matters.
UPDATE counterfoil_guard
SET lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, updated_at = UTC_TIMESTAMP(6)
WHERE digest = ? AND fence = ? AND state = 'processing'
  AND updated_at = COALESCE(TIMESTAMP'1970-01-01 00:00:00' + INTERVAL ? MICROSECOND, updated_at)
