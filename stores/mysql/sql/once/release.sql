-- Name, fence.
UPDATE counterfoil_locks
SET lease_until = UTC_TIMESTAMP(6)
WHERE name = ? AND fence = ? AND lease_until > UTC_TIMESTAMP(6)
