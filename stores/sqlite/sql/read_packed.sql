-- As read.sql, with all rows in one value, because handing over a row costs the driver more than reading it: for each
-- a line of JSON, then the payload and the headers, whose lengths in bytes stand last in the line.
-- A row with opaque content, or with more than ?5 bytes, is a line with its number alone. A blob where a name belongs makes the statement
-- fail; read.sql takes whatever stands there.
SELECT group_concat(
    CASE
        WHEN o.payload_bin IS NULL
            AND coalesce(length(CAST(o.payload AS BLOB)), 0) + coalesce(length(CAST(o.headers AS BLOB)), 0) <= ?5 THEN json_array(
            o.seq, o.id, o.aggregate_type, o.aggregate_id, o.version, o.event_type, o.state, o.attempts, o.crashes,
            coalesce(o.created_ms, o.created_at),
            CASE
                WHEN o.available_at IS NULL THEN 0
                ELSE coalesce(o.available_ms > (SELECT ms FROM counterfoil_now), 2)
            END,
            CASE
                WHEN o.aggregate_id IS NULL THEN 0
                WHEN NOT (SELECT EXISTS (SELECT 1 FROM counterfoil_lanes) OR EXISTS (SELECT 1 FROM counterfoil_blocks))
                    THEN 0
                ELSE EXISTS (
                        SELECT 1 FROM counterfoil_lanes l
                        WHERE l.queue_name = ?1 AND l.lane_id = o.lane_id AND l.lane_kind = o.lane_kind)
                    OR EXISTS (
                        SELECT 1 FROM counterfoil_blocks b
                        WHERE b.queue_name = ?1 AND b.lane_id = o.lane_id AND b.lane_kind = o.lane_kind)
            END,
            length(CAST(o.payload AS BLOB)), length(CAST(o.headers AS BLOB)))
            || char(10) || coalesce(o.payload, '') || coalesce(o.headers, '')
        ELSE o.seq || char(10)
    END, '')
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
