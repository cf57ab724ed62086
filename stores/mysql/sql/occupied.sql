-- Which queues have rows, and in which states. Steps from one to the next through the index, not from row to row.
SELECT queue_key, waiting
FROM counterfoil_outbox FORCE INDEX (counterfoil_outbox_new)
GROUP BY queue_key, waiting
