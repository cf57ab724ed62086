-- Arrays: $1 digest, $2 fence, $3 state, $4 status, $5 headers, $6 body, $7 keep and $8 retry in microseconds,
-- $9 when it was last changed, if that matters.
UPDATE counterfoil_guard AS g
SET state = w.state, status = w.status, headers = w.headers, body = w.body,
    expires_at = now() + w.keep * interval '1 microsecond', retry_at = now() + w.retry * interval '1 microsecond',
    lease_until = NULL, updated_at = now()
FROM unnest($1::bytea[], $2::bigint[], $3::text[], $4::smallint[], $5::text[], $6::bytea[], $7::bigint[], $8::bigint[],
            $9::timestamptz[])
    AS w (digest, fence, state, status, headers, body, keep, retry, seen)
-- The state is hidden, so that no plan goes through the small index of open records, which is full of dead ones.
WHERE g.digest = w.digest AND g.fence = w.fence AND coalesce(g.state, '') IN ('processing', 'uncertain')
  AND g.updated_at = coalesce(w.seen, g.updated_at)
RETURNING g.digest
