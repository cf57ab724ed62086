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

-- Claims a key for the transaction that is about to begin: takes its lock, then looks again whether the record is still
-- as it was seen. A function, because its statements are planned once and not for every request.
CREATE OR REPLACE FUNCTION counterfoil_guard_take(wanted bytea, lock bigint, expected bigint, session text)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    -- Assigned, and not performed: a plain expression runs without a plan.
    marked text := set_config('application_name', session, true);
BEGIN
    IF NOT pg_try_advisory_xact_lock(lock # 'counterfoil_guard'::regclass::oid::bigint) THEN
        RAISE EXCEPTION 'another request with this key is in progress' USING ERRCODE = 'CF001';
    END IF;
    IF expected IS NULL THEN
        IF EXISTS (SELECT FROM counterfoil_guard g WHERE g.digest = wanted) THEN
            RAISE EXCEPTION 'a request with this key is known already; it is answered from its record' USING ERRCODE = 'CF001';
        END IF;
    ELSE
        -- The transaction will write in the place of this record: a purge must not remove it before.
        PERFORM FROM counterfoil_guard g WHERE g.digest = wanted AND g.fence = expected FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the record of this key has changed' USING ERRCODE = 'CF001';
        END IF;
    END IF;
END
$$;
