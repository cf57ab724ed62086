-- ?1 queue, ?2 after, ?3 limit, ?4 numbers to leave out, ?5 numbers to take only, or NULL (JSON arrays),
-- ?6 up to which size content comes along.
SELECT
    o.seq,
    o.id,
    o.aggregate_type,
    o.aggregate_id,
    o.version,
    o.event_type,
    CASE WHEN coalesce(length(CAST(o.payload AS BLOB)), 0) + coalesce(length(o.payload_bin), 0) + coalesce(length(CAST(o.headers AS BLOB)), 0) <= ?6
         THEN o.payload END,
    CASE WHEN coalesce(length(CAST(o.payload AS BLOB)), 0) + coalesce(length(o.payload_bin), 0) + coalesce(length(CAST(o.headers AS BLOB)), 0) <= ?6
         THEN o.payload_bin END,
    CASE WHEN coalesce(length(CAST(o.payload AS BLOB)), 0) + coalesce(length(o.payload_bin), 0) + coalesce(length(CAST(o.headers AS BLOB)), 0) <= ?6
         THEN o.headers END,
    o.state,
    o.attempts,
    o.crashes,
    coalesce(o.created_ms, o.created_at) AS created,
    -- 2: the time cannot be understood.
    CASE
        WHEN o.available_at IS NULL THEN 0
        ELSE coalesce(o.available_ms > (SELECT ms FROM counterfoil_now), 2)
    END AS early,
    CASE
        WHEN o.aggregate_id IS NULL THEN 0
        WHEN NOT (SELECT EXISTS (SELECT 1 FROM counterfoil_lanes) OR EXISTS (SELECT 1 FROM counterfoil_blocks)) THEN 0
        ELSE EXISTS (
                SELECT 1 FROM counterfoil_lanes l
                WHERE l.queue_name = ?1 AND l.lane_id = o.lane_id AND l.lane_kind = o.lane_kind)
            OR EXISTS (
                SELECT 1 FROM counterfoil_blocks b
                WHERE b.queue_name = ?1 AND b.lane_id = o.lane_id AND b.lane_kind = o.lane_kind)
    END AS behind,
    nullif(max(coalesce(length(CAST(o.payload AS BLOB)), 0) + coalesce(length(o.payload_bin), 0) + coalesce(length(CAST(o.headers AS BLOB)), 0), ?6), ?6) AS left_out
FROM (
    SELECT seq FROM counterfoil_new
    WHERE queue_name = ?1
      AND seq > ?2
      AND seq NOT IN (SELECT value FROM json_each(?4))
      AND NOT EXISTS (SELECT 1 FROM counterfoil_queues q WHERE q.queue = ?1 AND q.paused_at IS NOT NULL)
    ORDER BY seq
    LIMIT ?3
) n
CROSS JOIN counterfoil_pending o ON o.seq = n.seq
WHERE ?5 IS NULL OR n.seq IN (SELECT value FROM json_each(?5))
