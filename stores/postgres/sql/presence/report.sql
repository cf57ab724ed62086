-- $1 member, $2 consumer, $3 status, $4 lease in milliseconds.
WITH silent AS (
    DELETE FROM counterfoil_consumers WHERE lease_until < clock_timestamp() - interval '1 day' AND member <> $1
)
INSERT INTO counterfoil_consumers (member, consumer, status, reported_at, lease_until)
VALUES ($1, $2, $3, clock_timestamp(), clock_timestamp() + $4 * interval '1 millisecond')
ON CONFLICT (member) DO UPDATE
SET consumer = excluded.consumer, status = excluded.status, reported_at = excluded.reported_at, lease_until = excluded.lease_until
