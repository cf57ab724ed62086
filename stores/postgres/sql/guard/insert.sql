-- $1 digest, $2 keep, $3 lease and $4 retry in microseconds, $5 attempt, $6 status, $7 state, $8 scope,
-- $9 business type, $10 key, $11 fingerprint, $12 headers, $13 body.
-- The number comes from the clock, so that it goes on growing when a record was forgotten.
INSERT INTO counterfoil_guard
    (digest, fence, expires_at, lease_until, retry_at, attempts, status, state, scope, business_type, key, fingerprint,
     headers, body)
VALUES
    ($1, (date_part('epoch', clock_timestamp()) * 1000000)::bigint, now() + $2 * interval '1 microsecond',
     now() + $3 * interval '1 microsecond', now() + $4 * interval '1 microsecond', $5, $6, $7, $8, $9, $10, $11, $12,
     $13)
ON CONFLICT (digest) DO NOTHING
RETURNING fence
