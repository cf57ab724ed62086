-- Number of a row in the outbox. What stands in its way, and who could deliver it.
SELECT
    COALESCE(o.available_at > UTC_TIMESTAMP(6), 0) AS early,
    CASE WHEN e.seq IS NOT NULL THEN COALESCE(NULLIF(e.id, ''), CONCAT('#', e.seq)) END AS behind_id, e.version AS behind_version,
    e.code AS behind_code,
    b.id AS parked_id, b.version AS parked_version, b.code AS parked_code,
    CASE WHEN q.paused_at IS NOT NULL
         THEN CONCAT(COALESCE(q.paused_reason, ''), ' (by ', COALESCE(q.paused_by, 'somebody'), ')') END AS paused,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', q.unavailable_since) AS unavailable_since,
    s.owner,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', r.lease_until) AS lease_until,
    o.queue_key
FROM counterfoil_outbox o
LEFT JOIN counterfoil_outbox e ON e.seq = (
    SELECT MIN(x.seq) FROM counterfoil_outbox x
    WHERE x.queue_key = o.queue_key AND x.lane = o.lane AND x.seq < o.seq AND x.waiting <> 1 AND o.waiting <> 1)
-- The first of those that hold the aggregate. A retry is the head of its lane.
LEFT JOIN counterfoil_parked b ON b.seq = (
    SELECT MIN(p.seq) FROM counterfoil_parked p
    WHERE p.queue_key = o.queue_key AND p.blocks = o.lane AND o.standing <> 2
      AND (p.state = 'pending' OR p.seq < o.seq))
LEFT JOIN counterfoil_queues q ON q.queue = o.queue_key
LEFT JOIN counterfoil_shards s ON s.queue = o.queue_key AND s.shard = o.shard AND s.owner IS NOT NULL
LEFT JOIN counterfoil_relays r ON r.relay = s.owner AND r.lease_until > UTC_TIMESTAMP(6)
WHERE o.seq = ?
