-- Every queue that has messages, a pause or a relay. The oldest is found by number, not by time: cheap, and right
-- but for transactions that were open long.
WITH pending AS (
    SELECT left(coalesce(queue, ''), 255) AS queue,
           count(*) FILTER (WHERE state IS NULL OR state NOT IN ('scheduled', 'retrying', 'held')) AS new,
           count(*) FILTER (WHERE state = 'scheduled') AS scheduled,
           count(*) FILTER (WHERE coalesce(queue, '') = '' AND state = 'scheduled' AND code = 'NO_ROUTE') AS no_route,
           count(*) FILTER (WHERE state = 'retrying') AS retrying,
           count(*) FILTER (WHERE state = 'held') AS held,
           min(created_at) FILTER (WHERE state IS DISTINCT FROM 'scheduled') AS oldest
    FROM counterfoil_outbox GROUP BY 1
), parked AS (
    SELECT left(queue, 255) AS queue, count(*) AS parked FROM counterfoil_parked WHERE state = 'pending' GROUP BY 1
), kept AS (
    SELECT left(queue, 255) AS queue, count(*) AS kept FROM counterfoil_history WHERE state = 'sent' GROUP BY 1
), served AS (
    SELECT q.queue, count(*) AS relays
    FROM counterfoil_relays r
    CROSS JOIN LATERAL unnest(r.queues) AS q (queue)
    WHERE r.lease_until > clock_timestamp()
    GROUP BY 1
), every AS (
    SELECT queue FROM pending
    UNION SELECT queue FROM parked
    UNION SELECT queue FROM kept
    UNION SELECT queue FROM served
    UNION SELECT queue FROM counterfoil_queues WHERE paused_at IS NOT NULL OR unavailable_since IS NOT NULL
)
SELECT
    e.queue,
    coalesce(p.new, 0) AS new,
    coalesce(p.scheduled, 0) AS scheduled,
    coalesce(p.retrying, 0) AS retrying,
    coalesce(p.held, 0) AS held,
    coalesce(k.parked, 0) AS parked,
    coalesce(h.kept, 0) AS kept,
    -- greatest() passes over NULL: without this an empty queue would be as old as 1970.
    CASE WHEN p.oldest IS NOT NULL
         THEN greatest(extract(epoch FROM clock_timestamp() - greatest(p.oldest, '1970-01-01')), 0)::float8
    END AS oldest_seconds,
    CASE WHEN q.paused_at IS NOT NULL
         THEN coalesce(q.paused_reason, '') || ' (by ' || coalesce(q.paused_by, 'somebody') || ')' END AS paused,
    q.unavailable_since,
    coalesce(s.relays, 0) AS relays,
    coalesce(p.no_route, 0) AS no_route
FROM every e
LEFT JOIN pending p USING (queue)
LEFT JOIN parked k USING (queue)
LEFT JOIN kept h USING (queue)
LEFT JOIN served s USING (queue)
LEFT JOIN counterfoil_queues q USING (queue)
ORDER BY e.queue
