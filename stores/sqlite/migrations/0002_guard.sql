-- What is remembered of requests: see docs/book/guard.md. A domain may have a table of its own with the
-- same columns, and more: `counterfoil guard table <name>` prints it.
--
-- Times are whole milliseconds since 1970, UTC.
CREATE TABLE IF NOT EXISTS counterfoil_guard (
    digest        BLOB    NOT NULL PRIMARY KEY CHECK (length(digest) = 32),
    fence         INTEGER NOT NULL,
    created_at    INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)),
    updated_at    INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)),
    expires_at    INTEGER NOT NULL,
    lease_until   INTEGER,
    retry_at      INTEGER,
    attempts      INTEGER NOT NULL,
    status        INTEGER,
    state         TEXT    NOT NULL CHECK (state IN ('processing', 'succeeded', 'retryable', 'failed', 'uncertain')),
    scope         TEXT    NOT NULL,
    business_type TEXT    NOT NULL,
    key           TEXT    NOT NULL,
    fingerprint   BLOB    NOT NULL,
    headers       TEXT,
    body          BLOB
);
CREATE INDEX IF NOT EXISTS counterfoil_guard_over ON counterfoil_guard (expires_at)
    WHERE state IN ('succeeded', 'retryable', 'failed');
CREATE INDEX IF NOT EXISTS counterfoil_guard_open ON counterfoil_guard (updated_at)
    WHERE state IN ('processing', 'uncertain');
