-- What is remembered of requests: see docs/book/guard.md. A domain may have a table of its own with the
-- same columns, and more: `counterfoil guard table <name>` prints it. It has no checks: they are read and compiled anew for
-- every INSERT.
CREATE TABLE IF NOT EXISTS counterfoil_guard (
    digest        bytea       PRIMARY KEY,
    fence         bigint      NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    expires_at    timestamptz NOT NULL,
    lease_until   timestamptz,
    retry_at      timestamptz,
    attempts      integer     NOT NULL,
    status        smallint,
    state         text        NOT NULL,
    scope         text        NOT NULL,
    business_type text        NOT NULL,
    key           text        NOT NULL,
    fingerprint   bytea       NOT NULL,
    headers       text,
    body          bytea
);
-- For the purge. Records expire about in the order in which they came, so a small index is enough,
-- and costs a request nothing.
CREATE INDEX IF NOT EXISTS counterfoil_guard_over ON counterfoil_guard USING brin (expires_at) WITH (pages_per_range = 32);
CREATE INDEX IF NOT EXISTS counterfoil_guard_open ON counterfoil_guard (updated_at)
    WHERE state IN ('processing', 'uncertain');
