-- Digest, keep, lease and retry in microseconds, attempt, status, state, scope, business type, name, fingerprint,
-- headers, body.
-- The number comes from the clock, so that it goes on growing when a record was forgotten.
INSERT INTO counterfoil_guard
    (digest, fence, created_at, updated_at, expires_at, lease_until, retry_at, attempts, status, state, scope,
     business_type, name, fingerprint, headers, body)
VALUES
    (?, LAST_INSERT_ID(TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6))),
     UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND,
     UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, ?, ?, ?, ?, ?, ?, ?, ?, ?)
