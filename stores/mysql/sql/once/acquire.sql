-- Lease in microseconds, name. A lock that is free.
UPDATE counterfoil_locks
SET fence = LAST_INSERT_ID(GREATEST(fence + 1, TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6)))),
    lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND
WHERE name = ? AND lease_until <= UTC_TIMESTAMP(6)
