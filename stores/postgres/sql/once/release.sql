-- $1 name, $2 fence.
UPDATE counterfoil_locks
SET lease_until = clock_timestamp()
WHERE name = $1 AND fence = $2 AND lease_until > clock_timestamp()
