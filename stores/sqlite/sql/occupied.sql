-- Which queues have rows that are new (0), that wait for a time (1), or in a lane that waits (2).
-- Steps from queue to queue through the indexes, not from row to row.
WITH RECURSIVE fresh (queue) AS (
    SELECT (SELECT queue_name FROM counterfoil_new ORDER BY queue_name LIMIT 1)
    UNION ALL
    SELECT (SELECT n.queue_name FROM counterfoil_new n WHERE n.queue_name > fresh.queue ORDER BY n.queue_name LIMIT 1)
    FROM fresh
    WHERE fresh.queue IS NOT NULL
), timed (queue) AS (
    SELECT (SELECT queue_name FROM counterfoil_timed ORDER BY queue_name LIMIT 1)
    UNION ALL
    SELECT (SELECT t.queue_name FROM counterfoil_timed t WHERE t.queue_name > timed.queue ORDER BY t.queue_name LIMIT 1)
    FROM timed
    WHERE timed.queue IS NOT NULL
), waiting (queue) AS (
    SELECT (SELECT queue_name FROM counterfoil_lanes ORDER BY queue_name LIMIT 1)
    UNION ALL
    SELECT (SELECT l.queue_name FROM counterfoil_lanes l WHERE l.queue_name > waiting.queue ORDER BY l.queue_name LIMIT 1)
    FROM waiting
    WHERE waiting.queue IS NOT NULL
)
SELECT 0, queue FROM fresh WHERE queue IS NOT NULL
UNION ALL
SELECT 1, queue FROM timed WHERE queue IS NOT NULL
UNION ALL
SELECT 2, queue FROM waiting WHERE queue IS NOT NULL
