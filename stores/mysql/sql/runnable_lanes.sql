-- Queue, shard bits, limit. Each lane by its first held row; lanes with a retry or a parked holder are left out.
SELECT COALESCE(o.aggregate_type, '') AS kind, o.aggregate_id AS id
FROM (
    SELECT queue_key, blocks, MIN(seq) AS head
    FROM counterfoil_outbox FORCE INDEX (counterfoil_outbox_blocks)
    WHERE queue_key = ? AND blocks IS NOT NULL AND (CAST(? AS SIGNED) >> shard) & 1 = 1
    GROUP BY queue_key, blocks
    HAVING MIN(waiting) = 3
) lane
STRAIGHT_JOIN counterfoil_outbox o FORCE INDEX (PRIMARY) ON o.seq = lane.head
WHERE NOT EXISTS (
    SELECT 1 FROM counterfoil_parked p FORCE INDEX (counterfoil_parked_block)
    -- A redriven one is a row of the lane like the others.
    WHERE p.queue_key = lane.queue_key AND p.blocks = lane.blocks AND p.state = 'pending')
LIMIT ?
