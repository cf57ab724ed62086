-- One want: its place, queue, after, shard bits, queue, limit. Only the index is read.
SELECT CAST(? AS SIGNED) AS want, seq, 0 AS due
FROM counterfoil_outbox FORCE INDEX (counterfoil_outbox_new)
WHERE queue_key = ? AND waiting = 0 AND seq > ? AND (CAST(? AS SIGNED) >> shard) & 1 = 1
  AND NOT EXISTS (SELECT 1 FROM counterfoil_queues WHERE queue = ? AND paused_at IS NOT NULL)
ORDER BY seq
LIMIT ?
