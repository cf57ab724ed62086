-- $1 consumer, $2 kinds, $3 ids, $4 versions. Tells whether this is still the transaction that was admitted (the mark
-- goes with it), and how many lanes were noted. What an operator has applied late does not bring the version down.
-- An insert finds each row by its key, whatever the server believes of the table. The day says which were not there.
WITH noted AS (
    INSERT INTO counterfoil_inbox_lanes AS l (consumer, kind, id, version, touched)
    SELECT $1, u.kind, u.id, u.version, 'infinity'
    FROM unnest($2::text[], $3::text[], $4::bigint[]) AS u (kind, id, version)
    WHERE current_setting('counterfoil.inbox', true) = 'open'
    ON CONFLICT (consumer, kind, id) DO UPDATE
    SET version = greatest(l.version, excluded.version), touched = (now() AT TIME ZONE 'UTC')::date
    RETURNING l.touched
)
SELECT coalesce(current_setting('counterfoil.inbox', true) = 'open', false) AS same,
       (SELECT count(*) FROM noted WHERE touched < 'infinity') AS noted
