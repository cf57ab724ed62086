-- $1 consumer, $2 kinds, $3 ids, ascending.
INSERT INTO counterfoil_inbox_lanes (consumer, kind, id)
SELECT $1, u.kind, u.id
FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS u (kind, id, n)
ORDER BY u.n
ON CONFLICT DO NOTHING
