-- One lane: its place, three times (queue, type, id), limit. Nothing while a retry or a parked message blocks it.
SELECT CAST(? AS SIGNED) AS want, seq, 0 AS due
FROM counterfoil_outbox FORCE INDEX (counterfoil_outbox_lane)
WHERE queue_key = ? AND blocks = UNHEX(CONVERT(MD5(CONCAT(?, 0x1f, ?)) USING ascii)) AND waiting = 3
  AND NOT EXISTS (
        SELECT 1 FROM counterfoil_outbox l FORCE INDEX (counterfoil_outbox_lane)
        WHERE l.queue_key = ? AND l.blocks = UNHEX(CONVERT(MD5(CONCAT(?, 0x1f, ?)) USING ascii)) AND l.waiting = 2)
  AND NOT EXISTS (
        SELECT 1 FROM counterfoil_parked p FORCE INDEX (counterfoil_parked_block)
        -- A redriven one is a row of the lane like the others.
        WHERE p.queue_key = ? AND p.blocks = UNHEX(CONVERT(MD5(CONCAT(?, 0x1f, ?)) USING ascii))
          AND p.state = 'pending')
ORDER BY seq
LIMIT ?
