-- As insert.sql, for many: arrays of the same columns. In the order of the digests, so that two of these statements never
-- wait for each other.
INSERT INTO counterfoil_guard
    (digest, fence, expires_at, lease_until, retry_at, attempts, status, state, scope, business_type, key, fingerprint,
     headers, body)
SELECT
    digest, (date_part('epoch', clock_timestamp()) * 1000000)::bigint, now() + keep * interval '1 microsecond',
    now() + lease * interval '1 microsecond', now() + retry * interval '1 microsecond', attempt, status, state, scope,
    business_type, key, fingerprint, headers, body
FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[], $5::integer[], $6::smallint[], $7::text[], $8::text[],
            $9::text[], $10::text[], $11::bytea[], $12::text[], $13::bytea[])
    AS w (digest, keep, lease, retry, attempt, status, state, scope, business_type, key, fingerprint, headers, body)
ORDER BY digest
ON CONFLICT (digest) DO NOTHING
RETURNING digest, fence
