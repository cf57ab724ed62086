-- ?1 consumer, ?2 kind, ?3 id, ?4 queue. The version, and whether something is put off, or is parked and holds.
SELECT
    l.version,
    EXISTS (
        SELECT 1 FROM counterfoil_lanes w
        WHERE w.queue_name = ?4 AND w.lane_id = ?3 AND w.lane_kind = ?2)
    OR EXISTS (
        SELECT 1 FROM counterfoil_blocks b
        WHERE b.queue_name = ?4 AND b.lane_id = ?3 AND b.lane_kind = ?2) AS taken
FROM counterfoil_inbox_lanes l
WHERE l.consumer = ?1 AND l.kind = ?2 AND l.id = ?3
