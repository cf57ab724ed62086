-- One-time tokens: issued to somebody, used once. Only a hash of the token is stored.
CREATE TABLE IF NOT EXISTS counterfoil_tokens (
    digest     bytea       PRIMARY KEY CHECK (octet_length(digest) = 32),
    owner      text        NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX IF NOT EXISTS counterfoil_tokens_expires ON counterfoil_tokens (expires_at);

-- Locks with a lease and a fencing number. A row stays when its lock is free: the number must grow.
CREATE TABLE IF NOT EXISTS counterfoil_locks (
    name        text        PRIMARY KEY,
    fence       bigint      NOT NULL,
    lease_until timestamptz NOT NULL
);
