-- Queue, the most that is counted.
SELECT count(*)
FROM (SELECT 1 AS one FROM counterfoil_outbox FORCE INDEX (counterfoil_outbox_blocks)
      WHERE queue_key = CAST(? AS BINARY) LIMIT ?) w
