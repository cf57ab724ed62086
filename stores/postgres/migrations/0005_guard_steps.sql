-- The first and the last step of a guarded transaction. They are procedures, because their statements are planned once and
-- not for every request, and because a call itself takes no plan.

-- Claims a key for the transaction that is about to begin: takes its lock, then looks again whether the record is still
-- as it was seen.
CREATE OR REPLACE PROCEDURE counterfoil_guard_claim(wanted bytea, lock bigint, expected bigint, session text)
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

-- Writes the finished record as the last thing that a transaction does. Where another one is there, it fails, and nothing
-- commits: ON CONFLICT would cost a second look at the index and another line in the log of the database.
CREATE OR REPLACE PROCEDURE counterfoil_guard_end(
    wanted bytea, expected bigint, kept_us bigint, retry_us bigint, tries integer, answer integer, outcome text,
    whose text, kind text, name text, asked bytea, head text, content bytea)
LANGUAGE plpgsql
AS $$
BEGIN
    IF expected IS NULL THEN
        INSERT INTO counterfoil_guard
            (digest, fence, expires_at, retry_at, attempts, status, state, scope, business_type, key, fingerprint,
             headers, body)
        VALUES
            (wanted, (date_part('epoch', clock_timestamp()) * 1000000)::bigint,
             now() + kept_us * interval '1 microsecond', now() + retry_us * interval '1 microsecond', tries, answer,
             outcome, whose, kind, name, asked, head, content);
    ELSE
        UPDATE counterfoil_guard g
        SET fence = greatest(g.fence + 1, (date_part('epoch', clock_timestamp()) * 1000000)::bigint),
            expires_at = now() + kept_us * interval '1 microsecond', lease_until = NULL,
            retry_at = now() + retry_us * interval '1 microsecond', attempts = tries, status = answer, state = outcome,
            scope = whose, business_type = kind, key = name, fingerprint = asked, headers = head, body = content,
            updated_at = now(), created_at = CASE WHEN tries = 1 THEN now() ELSE g.created_at END
        WHERE g.digest = wanted AND g.fence = expected;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the record of this key has changed' USING ERRCODE = 'CF001';
        END IF;
    END IF;
END
$$;
