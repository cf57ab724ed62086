-- At most so many. What somebody is just writing is passed over.
SELECT digest
FROM counterfoil_guard FORCE INDEX (counterfoil_guard_over)
WHERE over_at <= UTC_TIMESTAMP(6)
ORDER BY over_at
LIMIT ?
FOR UPDATE SKIP LOCKED
