-- $1 queue, $2 kinds, $3 ids. Gives the places of those of which something is put off, or is parked and holds.
-- Place 0 says that this transaction does not see what others have committed meanwhile.
-- A statement of its own, after the locks: its snapshot has what others committed before they let the lanes go.
WITH q AS MATERIALIZED (
    SELECT
        (SELECT true FROM counterfoil_outbox l
         WHERE left(coalesce(l.queue, ''), 255) = $1 AND l.state IN ('retrying', 'held') LIMIT 1) AS waiting,
        (SELECT true FROM counterfoil_parked p
         WHERE left(p.queue, 255) = $1 AND p.hold AND p.state IN ('pending', 'redriven') LIMIT 1) AS blocked
)
SELECT u.n
FROM q
CROSS JOIN unnest($2::text[], $3::text[]) WITH ORDINALITY AS u (kind, id, n)
LEFT JOIN LATERAL (
    SELECT true AS there FROM counterfoil_outbox l
    WHERE left(coalesce(l.queue, ''), 255) = $1
      AND md5(octet_length(coalesce(l.aggregate_type, ''))::text || ':' || coalesce(l.aggregate_type, '') || l.aggregate_id) = md5(octet_length(u.kind)::text || ':' || u.kind || u.id)
      AND l.state IN ('retrying', 'held')
    LIMIT 1) AS waits ON q.waiting
LEFT JOIN LATERAL (
    SELECT true AS there FROM counterfoil_parked p
    WHERE left(p.queue, 255) = $1
      AND md5(octet_length(coalesce(p.aggregate_type, ''))::text || ':' || coalesce(p.aggregate_type, '') || p.aggregate_id) = md5(octet_length(u.kind)::text || ':' || u.kind || u.id)
      AND p.hold AND p.state IN ('pending', 'redriven')
    LIMIT 1) AS blocks ON q.blocked
WHERE waits.there OR blocks.there
UNION ALL
SELECT 0 WHERE current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted')
