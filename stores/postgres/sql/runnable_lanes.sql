-- $1 queue, $2 shard bits, $3 limit. Steps from lane to lane through the index, not from row to row.
WITH RECURSIVE lane AS (
    (SELECT md5(octet_length(coalesce(aggregate_type, ''))::text || ':' || coalesce(aggregate_type, '') || aggregate_id) AS key, seq
     FROM counterfoil_outbox
     WHERE left(coalesce(queue, ''), 255) = $1 AND state IN ('retrying', 'held')
       AND md5(octet_length(coalesce(aggregate_type, ''))::text || ':' || coalesce(aggregate_type, '') || aggregate_id) IS NOT NULL
     ORDER BY md5(octet_length(coalesce(aggregate_type, ''))::text || ':' || coalesce(aggregate_type, '') || aggregate_id), seq
     LIMIT 1)
    UNION ALL
    SELECT next.*
    FROM lane
    CROSS JOIN LATERAL (
        SELECT md5(octet_length(coalesce(aggregate_type, ''))::text || ':' || coalesce(aggregate_type, '') || aggregate_id) AS key, seq
        FROM counterfoil_outbox
        WHERE left(coalesce(queue, ''), 255) = $1
          AND state IN ('retrying', 'held')
          AND md5(octet_length(coalesce(aggregate_type, ''))::text || ':' || coalesce(aggregate_type, '') || aggregate_id) > lane.key
        ORDER BY md5(octet_length(coalesce(aggregate_type, ''))::text || ':' || coalesce(aggregate_type, '') || aggregate_id), seq
        LIMIT 1
    ) next
)
SELECT coalesce(head.aggregate_type, '') AS kind, head.aggregate_id AS id
FROM lane
JOIN counterfoil_outbox head ON head.seq = lane.seq
WHERE ($2::bigint >> head.shard) & 1 = 1
  AND NOT EXISTS (
        SELECT FROM counterfoil_outbox l
        WHERE left(coalesce(l.queue, ''), 255) = $1
          AND md5(octet_length(coalesce(l.aggregate_type, ''))::text || ':' || coalesce(l.aggregate_type, '') || l.aggregate_id) = lane.key
          AND l.state IN ('retrying', 'held')
          AND l.state = 'retrying')
  AND NOT EXISTS (
        SELECT FROM counterfoil_parked p
        WHERE left(p.queue, 255) = $1
          AND md5(octet_length(coalesce(p.aggregate_type, ''))::text || ':' || coalesce(p.aggregate_type, '') || p.aggregate_id) = lane.key
          AND p.hold AND p.state IN ('pending', 'redriven')
          -- A redriven one is a row of the lane like the others.
          AND p.state = 'pending')
LIMIT $3
