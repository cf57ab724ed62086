-- Which queues have rows that are new (0), due (1), or in a lane that waits (2), and which are paused (3).
-- Steps from queue to queue through the indexes, not from row to row: the idle ones cost nothing.
WITH RECURSIVE fresh AS (
    (SELECT left(coalesce(queue, ''), 255) AS queue
     FROM counterfoil_outbox
     WHERE (state IS NULL OR state NOT IN ('scheduled', 'retrying', 'held')
              OR (state = 'held' AND aggregate_id IS NULL)
              OR (state IN ('scheduled', 'retrying') AND available_at IS NULL))
     ORDER BY left(coalesce(queue, ''), 255), seq
     LIMIT 1)
    UNION ALL
    SELECT next.*
    FROM fresh
    CROSS JOIN LATERAL (
        SELECT left(coalesce(queue, ''), 255) AS queue
        FROM counterfoil_outbox
        WHERE (state IS NULL OR state NOT IN ('scheduled', 'retrying', 'held')
              OR (state = 'held' AND aggregate_id IS NULL)
              OR (state IN ('scheduled', 'retrying') AND available_at IS NULL))
          AND left(coalesce(queue, ''), 255) > fresh.queue
        ORDER BY left(coalesce(queue, ''), 255), seq
        LIMIT 1
    ) next
), timed AS (
    (SELECT left(coalesce(queue, ''), 255) AS queue, available_at
     FROM counterfoil_outbox
     WHERE state IN ('scheduled', 'retrying')
     ORDER BY left(coalesce(queue, ''), 255), available_at
     LIMIT 1)
    UNION ALL
    SELECT next.*
    FROM timed
    CROSS JOIN LATERAL (
        SELECT left(coalesce(queue, ''), 255) AS queue, available_at
        FROM counterfoil_outbox
        WHERE state IN ('scheduled', 'retrying')
          AND left(coalesce(queue, ''), 255) > timed.queue
        ORDER BY left(coalesce(queue, ''), 255), available_at
        LIMIT 1
    ) next
), lanes AS (
    (SELECT left(coalesce(queue, ''), 255) AS queue
     FROM counterfoil_outbox
     WHERE state IN ('retrying', 'held')
     ORDER BY left(coalesce(queue, ''), 255), md5(octet_length(coalesce(aggregate_type, ''))::text || ':' || coalesce(aggregate_type, '') || aggregate_id)
     LIMIT 1)
    UNION ALL
    SELECT next.*
    FROM lanes
    CROSS JOIN LATERAL (
        SELECT left(coalesce(queue, ''), 255) AS queue
        FROM counterfoil_outbox
        WHERE state IN ('retrying', 'held')
          AND left(coalesce(queue, ''), 255) > lanes.queue
        ORDER BY left(coalesce(queue, ''), 255), md5(octet_length(coalesce(aggregate_type, ''))::text || ':' || coalesce(aggregate_type, '') || aggregate_id)
        LIMIT 1
    ) next
)
SELECT 0 AS kind, queue FROM fresh
UNION ALL
SELECT 1, queue FROM timed WHERE available_at <= now()
UNION ALL
SELECT 2, queue FROM lanes
UNION ALL
SELECT 3, queue FROM counterfoil_queues WHERE paused_at IS NOT NULL
