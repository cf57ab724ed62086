-- ?1 queue, ?2 limit. Steps from lane to lane through the index, not from row to row.
WITH RECURSIVE head (seq) AS (
    SELECT (
        SELECT f.seq FROM counterfoil_lanes f
        WHERE f.queue_name = ?1 AND f.lane_id IS NOT NULL
        ORDER BY f.lane_id, f.lane_kind
        LIMIT 1)
    UNION ALL
    -- The next type of the same id, or else the next id. (One comparison of pairs would not use the index.)
    SELECT coalesce((
        SELECT n.seq FROM counterfoil_lanes n
        WHERE n.queue_name = ?1 AND n.lane_id = here.lane_id AND n.lane_kind > here.lane_kind
        ORDER BY n.lane_kind
        LIMIT 1), (
        SELECT n.seq FROM counterfoil_lanes n
        WHERE n.queue_name = ?1 AND n.lane_id > here.lane_id
        ORDER BY n.lane_id, n.lane_kind
        LIMIT 1))
    FROM head
    CROSS JOIN counterfoil_pending here ON here.seq = head.seq
)
SELECT lane.lane_kind, lane.lane_id
FROM head
CROSS JOIN counterfoil_pending lane ON lane.seq = head.seq
WHERE NOT EXISTS (
        SELECT 1 FROM counterfoil_lanes l
        WHERE l.queue_name = ?1
          AND l.lane_id = lane.lane_id
          AND l.lane_kind = lane.lane_kind
          AND l.state = 'retrying')
  AND NOT EXISTS (
        SELECT 1 FROM counterfoil_blocks b
        -- A redriven one is a row of the lane like the others.
        WHERE b.queue_name = ?1
          AND b.lane_id = lane.lane_id
          AND b.lane_kind = lane.lane_kind
          AND b.state = 'pending')
LIMIT ?2
