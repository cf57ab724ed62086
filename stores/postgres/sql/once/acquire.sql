-- $1 name, $2 lease in microseconds. The time is looked at when the row is, not when the statement began to wait for it.
INSERT INTO counterfoil_locks AS held (name, fence, lease_until)
VALUES ($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, clock_timestamp() + $2 * interval '1 microsecond')
ON CONFLICT (name) DO UPDATE
SET fence = greatest(held.fence + 1, excluded.fence),
    lease_until = clock_timestamp() + $2 * interval '1 microsecond'
WHERE held.lease_until <= clock_timestamp()
RETURNING fence
