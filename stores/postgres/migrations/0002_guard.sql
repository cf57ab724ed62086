-- What is remembered of requests: see docs/book/guard.md. A domain may have a table of its own with the
-- same columns, and more: `counterfoil guard table <name>` prints it.
CREATE TABLE IF NOT EXISTS counterfoil_guard (
    digest        bytea       PRIMARY KEY CHECK (octet_length(digest) = 32),
    fence         bigint      NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    expires_at    timestamptz NOT NULL,
    lease_until   timestamptz,
    retry_at      timestamptz,
    attempts      integer     NOT NULL,
    status        smallint,
    state         text        NOT NULL CHECK (state IN ('processing', 'succeeded', 'retryable', 'failed', 'uncertain')),
    scope         text        NOT NULL,
    business_type text        NOT NULL,
    key           text        NOT NULL,
    fingerprint   bytea       NOT NULL,
    headers       text,
    body          bytea
);
CREATE INDEX IF NOT EXISTS counterfoil_guard_over ON counterfoil_guard (expires_at)
    WHERE state IN ('succeeded', 'retryable', 'failed');
CREATE INDEX IF NOT EXISTS counterfoil_guard_open ON counterfoil_guard (updated_at)
    WHERE state IN ('processing', 'uncertain');
