-- One want: its place, queue. A row without a number where the queue is paused.
SELECT CAST(? AS SIGNED), NULL, 0
FROM counterfoil_queues
WHERE queue = ? AND paused_at IS NOT NULL
