-- $1 number of a row in the outbox. What stands in its way, and who could deliver it.
SELECT
    o.available_at > now() AS early,
    earlier.id AS behind_id, earlier.version AS behind_version, earlier.code AS behind_code,
    block.id AS parked_id, block.version AS parked_version, block.code AS parked_code,
    CASE WHEN q.paused_at IS NOT NULL
         THEN coalesce(q.paused_reason, '') || ' (by ' || coalesce(q.paused_by, 'somebody') || ')' END AS paused,
    q.unavailable_since,
    s.owner,
    r.lease_until,
    (SELECT count(*) FROM counterfoil_relays m
     WHERE m.lease_until > clock_timestamp() AND coalesce(o.queue, '') = ANY (m.queues)) AS relays
FROM counterfoil_outbox o
LEFT JOIN counterfoil_queues q ON q.queue = coalesce(o.queue, '')
LEFT JOIN counterfoil_shards s ON s.queue = coalesce(o.queue, '') AND s.shard = o.shard AND s.owner IS NOT NULL
LEFT JOIN counterfoil_relays r ON r.relay = s.owner AND r.lease_until > clock_timestamp()
LEFT JOIN LATERAL (
    SELECT coalesce(nullif(e.id, ''), '#' || e.seq) AS id, e.version, e.code
    FROM counterfoil_outbox e
    WHERE coalesce(e.queue, '') = coalesce(o.queue, '')
      AND e.aggregate_id = o.aggregate_id
      AND coalesce(e.aggregate_type, '') = coalesce(o.aggregate_type, '')
      AND e.seq < o.seq
      AND e.state IS DISTINCT FROM 'scheduled'
      AND o.state IS DISTINCT FROM 'scheduled'
    ORDER BY e.seq
    LIMIT 1
) earlier ON true
LEFT JOIN LATERAL (
    SELECT p.id, p.version, p.code
    FROM counterfoil_parked p
    WHERE p.queue = coalesce(o.queue, '')
      AND md5(octet_length(coalesce(p.aggregate_type, ''))::text || ':' || coalesce(p.aggregate_type, '') || p.aggregate_id) = md5(octet_length(coalesce(o.aggregate_type, ''))::text || ':' || coalesce(o.aggregate_type, '') || o.aggregate_id)
      AND p.hold AND p.state IN ('pending', 'redriven')
      AND (p.state = 'pending' OR p.seq < o.seq)
      -- A retry is the head of its lane.
      AND o.state IS DISTINCT FROM 'retrying'
    ORDER BY p.seq
    LIMIT 1
) block ON true
WHERE o.seq = $1
