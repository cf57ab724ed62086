-- ?1 the queues that live relays serve, once for each relay (a JSON array).
-- Every queue that has messages, a pause or a relay.
WITH pending AS (
    SELECT queue_name AS queue,
           count(*) FILTER (WHERE state IS NULL OR state NOT IN ('scheduled', 'retrying', 'held')) AS new,
           count(*) FILTER (WHERE state = 'scheduled') AS scheduled,
           count(*) FILTER (WHERE queue_name = '' AND state = 'scheduled' AND code = 'NO_ROUTE') AS no_route,
           count(*) FILTER (WHERE state = 'retrying') AS retrying,
           count(*) FILTER (WHERE state = 'held') AS held,
           min(created_ms) FILTER (WHERE state IS NOT 'scheduled') AS oldest
    FROM counterfoil_pending GROUP BY 1
), parked AS (
    SELECT queue, count(*) AS parked FROM counterfoil_parked WHERE state = 'pending' GROUP BY 1
), kept AS (
    SELECT queue, count(*) AS kept FROM counterfoil_history WHERE state = 'sent' GROUP BY 1
), served AS (
    SELECT value AS queue, count(*) AS relays FROM json_each(?1) GROUP BY 1
), every AS (
    SELECT queue FROM pending
    UNION SELECT queue FROM parked
    UNION SELECT queue FROM kept
    UNION SELECT queue FROM served
    UNION SELECT queue FROM counterfoil_queues WHERE paused_at IS NOT NULL OR unavailable_since IS NOT NULL
)
SELECT
    every.queue,
    coalesce(pending.new, 0),
    coalesce(pending.scheduled, 0),
    coalesce(pending.retrying, 0),
    coalesce(pending.held, 0),
    coalesce(parked.parked, 0),
    coalesce(kept.kept, 0),
    max((SELECT ms FROM counterfoil_now) - max(pending.oldest, 0), 0) / 1000.0 AS oldest_seconds,
    CASE WHEN q.paused_at IS NOT NULL
         THEN coalesce(q.paused_reason, '') || ' (by ' || coalesce(q.paused_by, 'somebody') || ')' END AS paused,
    q.unavailable_since,
    coalesce(served.relays, 0),
    coalesce(pending.no_route, 0)
FROM every
LEFT JOIN pending ON pending.queue = every.queue
LEFT JOIN parked ON parked.queue = every.queue
LEFT JOIN kept ON kept.queue = every.queue
LEFT JOIN served ON served.queue = every.queue
LEFT JOIN counterfoil_queues q ON q.queue = every.queue
ORDER BY every.queue
