-- Lease in microseconds, digest, fence.
UPDATE counterfoil_guard
SET lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, updated_at = UTC_TIMESTAMP(6)
WHERE digest = ? AND fence = ? AND state = 'processing'
