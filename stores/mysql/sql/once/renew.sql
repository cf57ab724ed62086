-- Lease in microseconds, name, fence.
UPDATE counterfoil_locks
SET lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND
WHERE name = ? AND fence = ? AND lease_until > UTC_TIMESTAMP(6)
