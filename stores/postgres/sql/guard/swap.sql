-- As insert.sql, in the place of the record with number $14.
UPDATE counterfoil_guard
SET fence = greatest(fence + 1, (date_part('epoch', clock_timestamp()) * 1000000)::bigint),
    expires_at = now() + $2 * interval '1 microsecond',
    lease_until = now() + $3 * interval '1 microsecond',
    retry_at = now() + $4 * interval '1 microsecond',
    attempts = $5, status = $6, state = $7, scope = $8, business_type = $9, key = $10, fingerprint = $11, headers = $12,
    body = $13, updated_at = now(), created_at = CASE WHEN $5 = 1 THEN now() ELSE created_at END
WHERE digest = $1 AND fence = $14
RETURNING fence
