-- $1 consumer, $2 kinds, $3 ids, ascending. Locks the rows that are there, in this order.
SELECT u.n, l.version
FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS u (kind, id, n)
JOIN counterfoil_inbox_lanes l ON l.consumer = $1 AND l.kind = u.kind AND l.id = u.id
ORDER BY u.n
FOR NO KEY UPDATE OF l
