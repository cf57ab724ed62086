-- ?1 queue, ?2 limit, ?3 numbers to leave out (a JSON array), ?4 up to which size content comes along.
-- Retries are the head of their lane; a scheduled row that comes due may find its lane taken.
-- Numbers sort before texts: the odd times of foreign writers are looked at apart from the range of the due ones.
WITH due (seq) AS (
    SELECT * FROM (
        SELECT seq FROM counterfoil_timed
        WHERE queue_name = ?1
          AND available_at <= (SELECT ms FROM counterfoil_now)
          AND seq NOT IN (SELECT value FROM json_each(?3))
        ORDER BY available_at, seq
        LIMIT ?2)
    UNION ALL
    SELECT * FROM (
        SELECT seq FROM counterfoil_timed
        WHERE queue_name = ?1 AND available_at IS NULL AND seq NOT IN (SELECT value FROM json_each(?3))
        LIMIT ?2)
    UNION ALL
    SELECT * FROM (
        SELECT t.seq
        FROM counterfoil_timed t
        CROSS JOIN counterfoil_pending p ON p.seq = t.seq
        WHERE t.queue_name = ?1
          AND t.available_at >= ''
          AND coalesce(p.available_ms <= (SELECT ms FROM counterfoil_now), true)
          AND t.seq NOT IN (SELECT value FROM json_each(?3))
        LIMIT ?2)
)
SELECT
    o.seq,
    o.id,
    o.aggregate_type,
    o.aggregate_id,
    o.version,
    o.event_type,
    CASE WHEN coalesce(length(CAST(o.payload AS BLOB)), 0) + coalesce(length(o.payload_bin), 0) + coalesce(length(CAST(o.headers AS BLOB)), 0) <= ?4
         THEN o.payload END,
    CASE WHEN coalesce(length(CAST(o.payload AS BLOB)), 0) + coalesce(length(o.payload_bin), 0) + coalesce(length(CAST(o.headers AS BLOB)), 0) <= ?4
         THEN o.payload_bin END,
    CASE WHEN coalesce(length(CAST(o.payload AS BLOB)), 0) + coalesce(length(o.payload_bin), 0) + coalesce(length(CAST(o.headers AS BLOB)), 0) <= ?4
         THEN o.headers END,
    o.state,
    o.attempts,
    o.crashes,
    coalesce(o.created_ms, o.created_at) AS created,
    CASE WHEN o.available_at IS NOT NULL AND o.available_ms IS NULL THEN 2 ELSE 0 END AS early,
    o.state = 'scheduled' AND o.aggregate_id IS NOT NULL AND (
        EXISTS (
            SELECT 1 FROM counterfoil_lanes l
            WHERE l.queue_name = ?1 AND l.lane_id = o.lane_id AND l.lane_kind = o.lane_kind)
        OR EXISTS (
            SELECT 1 FROM counterfoil_blocks b
            WHERE b.queue_name = ?1 AND b.lane_id = o.lane_id AND b.lane_kind = o.lane_kind)
    ) AS behind,
    nullif(max(coalesce(length(CAST(o.payload AS BLOB)), 0) + coalesce(length(o.payload_bin), 0) + coalesce(length(CAST(o.headers AS BLOB)), 0), ?4), ?4) AS left_out
FROM due
CROSS JOIN counterfoil_pending o ON o.seq = due.seq
WHERE NOT EXISTS (SELECT 1 FROM counterfoil_queues q WHERE q.queue = ?1 AND q.paused_at IS NOT NULL)
ORDER BY coalesce(o.available_ms, 0), o.seq
LIMIT ?2
