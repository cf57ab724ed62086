-- $1 consumer, $2 kinds, $3 ids, ascending. Locks the rows that are there, one after the other in this order.
-- LATERAL: each by its key, also when this was planned while the table was empty.
SELECT u.n, l.version
FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS u (kind, id, n)
CROSS JOIN LATERAL (
    SELECT version FROM counterfoil_inbox_lanes
    WHERE consumer = $1 AND kind = u.kind AND id = u.id
    FOR NO KEY UPDATE) AS l
