-- How many wait in which way. The oldest is found by number, not by time: from an index alone, and right but for
-- transactions that were open long.
SELECT g.queue_key, g.standing, g.messages,
       TIMESTAMPDIFF(MICROSECOND, o.created_at, UTC_TIMESTAMP(6)) AS age
FROM (
    SELECT queue_key, standing, COUNT(*) AS messages, MIN(seq) AS head
    FROM counterfoil_outbox
    GROUP BY queue_key, standing
) g
JOIN counterfoil_outbox o ON o.seq = g.head
