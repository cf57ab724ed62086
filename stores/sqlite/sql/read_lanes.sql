-- ?1 queue, ?2 lanes (a JSON array of [type, id]), ?3 rows of each lane, ?4 up to which size content comes along.
WITH lane (kind, id) AS (
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?2)
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
    0 AS early,
    0 AS behind,
    nullif(max(coalesce(length(CAST(o.payload AS BLOB)), 0) + coalesce(length(o.payload_bin), 0) + coalesce(length(CAST(o.headers AS BLOB)), 0), ?4), ?4) AS left_out
FROM lane
-- The lane's numbers as a JSON array: only so can each lane have a limit of its own.
CROSS JOIN json_each((
    SELECT json_group_array(seq) FROM (
        SELECT h.seq FROM counterfoil_lanes h
        WHERE h.queue_name = ?1 AND h.lane_id = lane.id AND h.lane_kind = lane.kind AND h.state = 'held'
        ORDER BY h.seq
        LIMIT ?3))) held
CROSS JOIN counterfoil_pending o ON o.seq = held.value
WHERE NOT EXISTS (
        SELECT 1 FROM counterfoil_lanes l
        WHERE l.queue_name = ?1 AND l.lane_id = lane.id AND l.lane_kind = lane.kind AND l.state = 'retrying')
  AND NOT EXISTS (
        SELECT 1 FROM counterfoil_blocks b
        -- A redriven one is a row of the lane like the others.
        WHERE b.queue_name = ?1 AND b.lane_id = lane.id AND b.lane_kind = lane.kind AND b.state = 'pending')
