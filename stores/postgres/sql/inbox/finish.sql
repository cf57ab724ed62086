-- $1 consumer, $2 kinds, $3 ids, $4 versions. Tells whether this is still the transaction that was admitted (the mark
-- goes with it), and how many lanes were noted. What an operator has applied late does not bring the version down.
WITH noted AS (
    UPDATE counterfoil_inbox_lanes l
    SET version = greatest(l.version, u.version), touched = (now() AT TIME ZONE 'UTC')::date
    FROM unnest($2::text[], $3::text[], $4::bigint[]) AS u (kind, id, version)
    WHERE l.consumer = $1 AND l.kind = u.kind AND l.id = u.id
      AND current_setting('counterfoil.inbox', true) = 'open'
    RETURNING 1
)
SELECT coalesce(current_setting('counterfoil.inbox', true) = 'open', false) AS same,
       (SELECT count(*) FROM noted) AS noted
