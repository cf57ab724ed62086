-- $1 digest, $2 owner, $3 time to live in microseconds.
INSERT INTO counterfoil_tokens (digest, owner, expires_at) VALUES ($1, $2, now() + $3 * interval '1 microsecond')
