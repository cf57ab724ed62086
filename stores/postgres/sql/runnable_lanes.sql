-- $1 queue, $2 shard bits, $3 limit. Steps from lane to lane through the index, not from row to row.
WITH RECURSIVE lane AS (
    (SELECT aggregate_id AS id, coalesce(aggregate_type, '') AS kind, shard
     FROM counterfoil_outbox
     WHERE left(coalesce(queue, ''), 255) = $1 AND state IN ('retrying', 'held')
     ORDER BY aggregate_id, coalesce(aggregate_type, '')
     LIMIT 1)
    UNION ALL
    SELECT next.*
    FROM lane
    CROSS JOIN LATERAL (
        SELECT aggregate_id AS id, coalesce(aggregate_type, '') AS kind, shard
        FROM counterfoil_outbox
        WHERE left(coalesce(queue, ''), 255) = $1
          AND state IN ('retrying', 'held')
          AND (aggregate_id, coalesce(aggregate_type, '')) > (lane.id, lane.kind)
        ORDER BY aggregate_id, coalesce(aggregate_type, '')
        LIMIT 1
    ) next
)
SELECT lane.kind, lane.id
FROM lane
WHERE ($2::bigint >> lane.shard) & 1 = 1
  AND NOT EXISTS (
        SELECT FROM counterfoil_outbox l
        WHERE left(coalesce(l.queue, ''), 255) = $1
          AND l.aggregate_id = lane.id
          AND coalesce(l.aggregate_type, '') = lane.kind
          AND l.state IN ('retrying', 'held')
          AND l.state = 'retrying')
  AND NOT EXISTS (
        SELECT FROM counterfoil_parked p
        WHERE p.queue = $1
          AND p.aggregate_id = lane.id
          AND coalesce(p.aggregate_type, '') = lane.kind
          AND p.hold AND p.state IN ('pending', 'redriven'))
LIMIT $3
