-- The first and the last step of a request that is the first with its key and succeeds: what nearly every request is. They do
-- what counterfoil_guard_claim and counterfoil_guard_end do, with fewer arguments: to read one costs more than to take a value
-- apart.

-- Claims a key that has no record.
CREATE OR REPLACE PROCEDURE counterfoil_guard_free(wanted bytea, lock bigint, session text)
LANGUAGE plpgsql
AS $$
DECLARE
    -- Assigned, and not performed: a plain expression runs without a plan.
    marked text := set_config('application_name', session, true);
BEGIN
    IF NOT pg_try_advisory_xact_lock(lock # 'counterfoil_guard'::regclass::oid::bigint) THEN
        RAISE EXCEPTION 'another request with this key is in progress' USING ERRCODE = 'CF001';
    END IF;
    -- EXISTS would be one step of the plan more.
    PERFORM FROM counterfoil_guard g WHERE g.digest = wanted;
    IF FOUND THEN
        RAISE EXCEPTION 'a request with this key is known already; it is answered from its record' USING ERRCODE = 'CF001';
    END IF;
END
$$;

-- Writes the record. Digest (32 bytes), fingerprint (32 bytes) and body of the answer come as one value; key, scope, business
-- type and headers as another, with the separator of units between them, which none of them can contain.
CREATE OR REPLACE PROCEDURE counterfoil_guard_done(packed bytea, words text, kept_us bigint, answer integer)
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO counterfoil_guard
        (digest, fence, expires_at, attempts, status, state, scope, business_type, key, fingerprint, headers, body)
    VALUES
        (substring(packed, 1, 32), (date_part('epoch', clock_timestamp()) * 1000000)::bigint,
         now() + kept_us * interval '1 microsecond', 1, answer, 'succeeded', split_part(words, e'\x1f', 2),
         split_part(words, e'\x1f', 3), split_part(words, e'\x1f', 1), substring(packed, 33, 32),
         nullif(split_part(words, e'\x1f', 4), ''), substring(packed, 65));
END
$$;
