-- Queue, the lane after which to begin (hexadecimal), lanes to look at, twice. Every lane is told; only for one that nothing holds back, its
-- first row too. A retry stands before the held rows of its lane in the index.
SELECT HEX(lane.blocks), o.shard, COALESCE(o.aggregate_type, '') AS kind, o.aggregate_id AS id
FROM (
    SELECT
        page.blocks,
        CASE
            WHEN page.first = 3 AND NOT EXISTS (
                SELECT 1 FROM counterfoil_parked p FORCE INDEX (counterfoil_parked_block)
                -- A redriven one is a row of the lane like the others.
                WHERE p.queue_key = page.queue_key AND p.blocks = page.blocks AND p.state = 'pending')
            THEN (
                SELECT h.seq FROM counterfoil_outbox h FORCE INDEX (counterfoil_outbox_blocks)
                WHERE h.queue_key = page.queue_key AND h.blocks = page.blocks
                ORDER BY h.waiting, h.seq
                LIMIT 1)
        END AS head
    FROM (
        SELECT queue_key, blocks, MIN(waiting) AS first
        FROM counterfoil_outbox FORCE INDEX (counterfoil_outbox_blocks)
        WHERE queue_key = ? AND blocks > UNHEX(?)
        GROUP BY queue_key, blocks
        ORDER BY queue_key, blocks
        LIMIT ?
    ) page
    -- Makes this a table of its own: MariaDB would put the questions above where it cannot answer them.
    LIMIT ?
) lane
LEFT JOIN counterfoil_outbox o FORCE INDEX (PRIMARY) ON o.seq = lane.head
ORDER BY lane.blocks
