-- ?1 queue, ?2 lanes to look at, ?3 and ?4 the id and the type of the lane after which to begin, or NULL.
-- Steps from lane to lane through the index, not from row to row.
WITH RECURSIVE head (seq) AS (
    SELECT CASE
        WHEN ?3 IS NULL THEN (
            SELECT f.seq FROM counterfoil_lanes f
            WHERE f.queue_name = ?1 AND f.lane_id IS NOT NULL
            ORDER BY f.lane_id, f.lane_kind
            LIMIT 1)
        ELSE coalesce((
            SELECT n.seq FROM counterfoil_lanes n
            WHERE n.queue_name = ?1 AND n.lane_id = CAST(?3 AS TEXT) AND n.lane_kind > CAST(?4 AS TEXT)
            ORDER BY n.lane_kind
            LIMIT 1), (
            SELECT n.seq FROM counterfoil_lanes n
            WHERE n.queue_name = ?1 AND n.lane_id > CAST(?3 AS TEXT)
            ORDER BY n.lane_id, n.lane_kind
            LIMIT 1))
    END
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
    LIMIT ?2
)
SELECT
    CAST(lane.lane_id AS BLOB),
    CAST(lane.lane_kind AS BLOB),
    NOT EXISTS (
        SELECT 1 FROM counterfoil_blocks b
        -- A redriven one is a row of the lane like the others.
        WHERE b.queue_name = ?1
          AND b.lane_id = lane.lane_id
          AND b.lane_kind = lane.lane_kind
          AND b.state = 'pending')
    AND NOT EXISTS (
        SELECT 1 FROM counterfoil_lanes l
        WHERE l.queue_name = ?1
          AND l.lane_id = lane.lane_id
          AND l.lane_kind = lane.lane_kind
          AND l.state = 'retrying')
FROM head
CROSS JOIN counterfoil_pending lane ON lane.seq = head.seq
