-- $1 digest, $2 fence, $3 state, $4 status, $5 headers, $6 body, $7 keep and $8 retry in microseconds.
UPDATE counterfoil_guard
SET state = $3, status = $4, headers = $5, body = $6, expires_at = now() + $7 * interval '1 microsecond',
    retry_at = now() + $8 * interval '1 microsecond', lease_until = NULL, updated_at = now()
WHERE digest = $1 AND fence = $2 AND state IN ('processing', 'uncertain')
