-- Consumer, age in microseconds, at most so many. What somebody is just writing is passed over.
SELECT name
FROM counterfoil_inbox FORCE INDEX (counterfoil_inbox_processed)
WHERE consumer = CAST(? AS BINARY) AND state = 'applied'
  AND processed_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND
ORDER BY processed_at
LIMIT ?
FOR UPDATE SKIP LOCKED
