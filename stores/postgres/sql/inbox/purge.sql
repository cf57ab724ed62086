-- $1 consumer, $2 age in seconds, $3 rows of each kind in one go. What waits or is parked stays.
WITH p AS (
    DELETE FROM counterfoil_inbox
    WHERE (consumer, key) IN (
        SELECT i.consumer, i.key FROM counterfoil_inbox i
        WHERE i.consumer = $1 AND i.state = 'applied' AND i.processed_at < now() - $2 * interval '1 second'
        LIMIT $3 FOR UPDATE SKIP LOCKED)
    RETURNING 1
), l AS (
    DELETE FROM counterfoil_inbox_lanes
    WHERE (consumer, kind, id) IN (
        SELECT consumer, kind, id FROM counterfoil_inbox_lanes
        WHERE consumer = $1 AND touched < (now() - $2 * interval '1 second')::date
        ORDER BY touched LIMIT $3 FOR UPDATE SKIP LOCKED)
    RETURNING 1
)
SELECT (SELECT count(*) FROM p) + (SELECT count(*) FROM l) AS removed
