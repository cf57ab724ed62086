-- $1 name, $2 fence, $3 lease in microseconds.
UPDATE counterfoil_locks
SET lease_until = clock_timestamp() + $3 * interval '1 microsecond'
WHERE name = $1 AND fence = $2 AND lease_until > clock_timestamp()
