-- Consumer, age in microseconds, at most so many.
SELECT kind, id
FROM counterfoil_inbox_lanes FORCE INDEX (counterfoil_inbox_lanes_touched)
WHERE consumer = CAST(? AS BINARY) AND touched < DATE(UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND)
ORDER BY touched
LIMIT ?
FOR UPDATE SKIP LOCKED
