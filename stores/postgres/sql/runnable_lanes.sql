-- $1 queues, $2 shard bits, $3 and $4 the queue and the lane after which to begin, $5 lanes to look at.
-- Steps from lane to lane through the index, not from row to row. Of a queue that was not asked for it sees one lane: no lane's
-- name is above 'g'. The last lane is always told when there may be more: there the next search goes on.
-- What holds a lane back is asked with LIMIT 1 and by lane: a plan that was made while the tables were empty would otherwise go
-- through all of them.
WITH RECURSIVE w AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS u (queue, shards, n)
), lane AS (
    SELECT $3::text AS queue, $4::text AS key, NULL::text AS kind, NULL::text AS id, NULL::smallint AS shard, 0::bigint AS step,
           -1::bigint AS shards, NULL::bigint AS n
    UNION ALL
    SELECT next.queue, next.key, next.kind, next.id, next.shard, lane.step + 1, w.shards, w.n
    FROM lane
    CROSS JOIN LATERAL (
        SELECT left(coalesce(queue, ''), 255) AS queue,
               md5(octet_length(coalesce(aggregate_type, ''))::text || ':' || coalesce(aggregate_type, '') || aggregate_id) AS key,
               coalesce(aggregate_type, '') AS kind,
               aggregate_id AS id,
               shard
        FROM counterfoil_outbox
        WHERE state IN ('retrying', 'held')
          AND (left(coalesce(queue, ''), 255),
               md5(octet_length(coalesce(aggregate_type, ''))::text || ':' || coalesce(aggregate_type, '') || aggregate_id))
              > (lane.queue, CASE WHEN lane.shards IS NULL THEN 'g' ELSE lane.key END)
        ORDER BY left(coalesce(queue, ''), 255),
                 md5(octet_length(coalesce(aggregate_type, ''))::text || ':' || coalesce(aggregate_type, '') || aggregate_id),
                 seq
        LIMIT 1
    ) next
    LEFT JOIN w ON w.queue = next.queue
    WHERE lane.step < $5
), found AS MATERIALIZED (
    SELECT
        lane.*,
        lane.n IS NOT NULL AND lane.key IS NOT NULL AND (lane.shards >> lane.shard) & 1 = 1
        AND (
            SELECT true FROM counterfoil_parked p
            WHERE left(p.queue, 255) = lane.queue
              AND md5(octet_length(coalesce(p.aggregate_type, ''))::text || ':' || coalesce(p.aggregate_type, '') || p.aggregate_id) = lane.key
              AND p.hold AND p.state IN ('pending', 'redriven')
              -- A redriven one is a row of the lane like the others.
              AND p.state = 'pending'
            LIMIT 1) IS NULL
        AND (
            SELECT true FROM counterfoil_outbox l
            WHERE left(coalesce(l.queue, ''), 255) = lane.queue
              AND md5(octet_length(coalesce(l.aggregate_type, ''))::text || ':' || coalesce(l.aggregate_type, '') || l.aggregate_id) = lane.key
              AND l.state IN ('retrying', 'held')
              AND l.state = 'retrying'
            LIMIT 1) IS NULL AS free
    FROM lane
    WHERE lane.step > 0
)
SELECT queue, coalesce(key, 'g') AS key, step = $5 AS last, free, coalesce(n, 0) AS n, coalesce(kind, '') AS kind, coalesce(id, '') AS id
FROM found
WHERE free OR step = $5
