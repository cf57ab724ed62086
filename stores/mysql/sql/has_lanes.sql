-- One want: its place, queue.
SELECT CAST(? AS SIGNED)
FROM counterfoil_outbox FORCE INDEX (counterfoil_outbox_blocks)
WHERE queue_key = ? AND blocks IS NOT NULL
LIMIT 1
