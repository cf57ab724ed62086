-- $1 consumer, $2 kinds, $3 ids, $4 versions. Tells whether this is inside a transaction, and how many lanes were noted.
-- What an operator has applied late does not bring the version down.
WITH noted AS (
    UPDATE counterfoil_inbox_lanes l
    SET version = greatest(l.version, u.version), touched = (now() AT TIME ZONE 'UTC')::date
    FROM unnest($2::text[], $3::text[], $4::bigint[]) AS u (kind, id, version)
    WHERE l.consumer = $1 AND l.kind = u.kind AND l.id = u.id
      -- A statement outside a transaction is as old as the one around it.
      AND transaction_timestamp() <> statement_timestamp()
    RETURNING 1
)
SELECT transaction_timestamp() <> statement_timestamp() AS inside, (SELECT count(*) FROM noted) AS noted
