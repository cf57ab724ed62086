-- $1 consumer, $2 age in seconds, $3 rows of each kind in one go, $4 age of aggregates or NULL: they stay. What waits or is parked stays.
-- By ctid: the rows are locked, so they do not move.
WITH p AS (
    DELETE FROM counterfoil_inbox
    WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM counterfoil_inbox
        WHERE consumer = $1 AND state = 'applied' AND processed_at < now() - $2 * interval '1 second'
        ORDER BY processed_at LIMIT $3 FOR UPDATE SKIP LOCKED))
    RETURNING 1
), l AS (
    DELETE FROM counterfoil_inbox_lanes
    WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM counterfoil_inbox_lanes
        WHERE consumer = $1 AND touched < ((now() - $4 * interval '1 second') AT TIME ZONE 'UTC')::date
        ORDER BY touched LIMIT $3 FOR UPDATE SKIP LOCKED))
    RETURNING 1
)
SELECT (SELECT count(*) FROM p) + (SELECT count(*) FROM l) AS removed
