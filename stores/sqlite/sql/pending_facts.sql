-- ?1 number of a row in the outbox, ?2 live relays, ?3 the queues that they serve, once for each (JSON arrays).
-- What stands in its way, and who could deliver it.
SELECT
    coalesce(o.available_ms > (SELECT ms FROM counterfoil_now), 0) AS early,
    coalesce(nullif(CAST(earlier.id AS TEXT), ''), '#' || earlier.seq), earlier.version, earlier.code, earlier.seq IS NOT NULL,
    block.id, block.version, block.code, block.seq IS NOT NULL,
    CASE WHEN q.paused_at IS NOT NULL
         THEN coalesce(q.paused_reason, '') || ' (by ' || coalesce(q.paused_by, 'somebody') || ')' END AS paused,
    q.unavailable_since,
    (SELECT s.owner FROM counterfoil_shards s
     WHERE s.queue = o.queue_name AND s.owner IN (SELECT value FROM json_each(?2))) AS owner,
    (SELECT count(*) FROM json_each(?3) WHERE value = o.queue_name) AS relays
FROM counterfoil_pending o
LEFT JOIN counterfoil_queues q ON q.queue = o.queue_name
LEFT JOIN counterfoil_outbox earlier ON earlier.seq = (
    SELECT e.seq FROM counterfoil_pending e
    WHERE e.queue_name = o.queue_name
      AND e.lane_id = o.lane_id
      AND e.lane_kind = o.lane_kind
      AND e.seq < o.seq
      AND e.state IS NOT 'scheduled'
      AND o.state IS NOT 'scheduled'
    ORDER BY e.seq
    LIMIT 1)
LEFT JOIN counterfoil_parked block ON block.seq = (
    SELECT b.seq FROM counterfoil_blocks b
    WHERE b.queue_name = o.queue_name
      AND b.lane_id = o.lane_id
      AND b.lane_kind = o.lane_kind
      AND (b.state = 'pending' OR b.seq < o.seq)
      -- A retry is the head of its lane.
      AND o.state IS NOT 'retrying'
    ORDER BY b.seq
    LIMIT 1)
WHERE o.seq = ?1
