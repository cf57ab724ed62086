-- One-time tokens: issued to somebody, used once. Only a hash of the token is stored.
CREATE TABLE IF NOT EXISTS counterfoil_tokens (
    digest     BLOB    NOT NULL PRIMARY KEY CHECK (length(digest) = 32),
    owner      TEXT    NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS counterfoil_tokens_expires ON counterfoil_tokens (expires_at);

-- Locks with a lease and a fencing number. A row stays when its lock is free: the number must grow.
CREATE TABLE IF NOT EXISTS counterfoil_locks (
    name        TEXT    NOT NULL PRIMARY KEY,
    fence       INTEGER NOT NULL,
    lease_until INTEGER NOT NULL
) WITHOUT ROWID;
