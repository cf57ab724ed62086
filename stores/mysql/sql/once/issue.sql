-- Digest, owner, time to live in microseconds.
INSERT INTO counterfoil_tokens (digest, owner, expires_at) VALUES (?, ?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)
