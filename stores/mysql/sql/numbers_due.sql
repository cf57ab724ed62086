-- One want: its place, queue, shard bits, queue, limit. Only the index is read.
SELECT CAST(? AS SIGNED) AS want, seq, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', due_at) AS due
FROM counterfoil_outbox FORCE INDEX (counterfoil_outbox_due)
WHERE queue_key = ? AND due_at <= UTC_TIMESTAMP(6) AND (CAST(? AS SIGNED) >> shard) & 1 = 1
  AND NOT EXISTS (SELECT 1 FROM counterfoil_queues WHERE queue = ? AND paused_at IS NOT NULL)
ORDER BY due_at, seq
LIMIT ?
