-- One lane: its place, three times (queue, type, id), limit. Nothing while a retry or a parked message blocks it.
SELECT CAST(? AS SIGNED) AS want, seq, 0 AS due
FROM counterfoil_outbox FORCE INDEX (counterfoil_outbox_blocks)
WHERE queue_key = ? AND blocks = UNHEX(LEFT(CONVERT(SHA2(CONCAT(?, 0x1f, ?), 256) USING ascii), 32)) AND waiting = 3
  AND NOT EXISTS (
        SELECT 1 FROM counterfoil_outbox l FORCE INDEX (counterfoil_outbox_blocks)
        WHERE l.queue_key = ? AND l.blocks = UNHEX(LEFT(CONVERT(SHA2(CONCAT(?, 0x1f, ?), 256) USING ascii), 32))
          AND l.waiting = 2)
  AND NOT EXISTS (
        SELECT 1 FROM counterfoil_parked p FORCE INDEX (counterfoil_parked_block)
        -- A redriven one is a row of the lane like the others.
        WHERE p.queue_key = ? AND p.blocks = UNHEX(LEFT(CONVERT(SHA2(CONCAT(?, 0x1f, ?), 256) USING ascii), 32))
          AND p.state = 'pending')
ORDER BY seq
LIMIT ?
